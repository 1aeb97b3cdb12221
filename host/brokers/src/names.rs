//! Names and label values of brokers' objects (rule 51): upstream Akri's, cut with a hash where Kubernetes allows less.

use blake2::Blake2b;
use blake2::digest::consts::U4;

use akri_model::names::hex;

/// Longest name of a Pod (DNS subdomain).
const POD: usize = 253;

/// Longest name of a Job or a Service, and longest label value (DNS label).
const LABEL: usize = 63;

/// Returns the name of the broker Pod of an Instance on a node. Upstream Akri leaves the node out if the device is local.
pub fn pod_name(instance: &str, node: &str, shared: bool) -> String {
    let instance = dashed(instance);
    fit(if shared { format!("{node}-{instance}-pod") } else { format!("{instance}-pod") }, POD)
}

/// Returns the name of an Instance's Job for one generation of its Configuration.
pub fn job_name(instance: &str, generation: i64) -> String {
    fit(format!("{}-{generation}-job", dashed(instance)), LABEL)
}

/// Returns a name as a label value.
pub fn label_value(name: &str) -> String {
    fit(name.to_owned(), LABEL)
}

/// Returns the name of the Service for the brokers of an Instance or of a Configuration. It begins with a letter (RFC 1035).
pub fn service_name(of: &str) -> String {
    let name = format!("{}-svc", dashed(of));
    if name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return fit(name, LABEL);
    }
    cut(&format!("akri-{name}"), &name, LABEL)
}

fn dashed(name: &str) -> String {
    name.replace('.', "-")
}

fn fit(name: String, max: usize) -> String {
    if name.len() <= max { name } else { cut(&name, &name, max) }
}

/// Cuts a name so that it fits with 8 hex digits of the hash of `hashed`.
fn cut(name: &str, hashed: &str, max: usize) -> String {
    let kept: String = name.chars().take(max - 9).collect();
    format!("{}-{}", kept.trim_end_matches(['-', '.', '_']), hex::<Blake2b<U4>>(hashed))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test] // rule 51
    fn names_are_those_of_upstream_akri() {
        for (name, expected) in [
            (pod_name("cam-8120fe", "node-a", true), "node-a-cam-8120fe-pod"),
            (pod_name("my.cam-8120fe", "node.example", true), "node.example-my-cam-8120fe-pod"),
            (pod_name("cam-8120fe", "node-a", false), "cam-8120fe-pod"),
            (job_name("my.cam-8120fe", 3), "my-cam-8120fe-3-job"),
            (service_name("cam-8120fe"), "cam-8120fe-svc"),
            (service_name("my.cam"), "my-cam-svc"),
        ] {
            assert_eq!(name, expected);
        }
    }

    #[test] // rule 51
    fn service_name_begins_with_a_letter() {
        let name = service_name("0cam");
        assert!(name.starts_with("akri-0cam-svc-") && name.len() == "akri-0cam-svc-".len() + 8, "{name}");
        assert_ne!(name, service_name("akri-0cam"));
    }

    #[test] // rule 51
    fn long_names_are_cut_and_stay_distinct() {
        let (one, other) = (format!("{}-000001", "c".repeat(56)), format!("{}-000002", "c".repeat(56)));
        for name in [job_name, |instance: &str, _| service_name(instance)] {
            let (one, other) = (name(&one, 1), name(&other, 1));
            assert!(one.len() <= 63 && other.len() <= 63 && one != other, "{one} {other}");
        }
        assert_eq!(label_value(&one), one, "63 characters fit");
        assert!(pod_name(&one, &"n".repeat(253), true).len() <= 253);
    }

    proptest! {
        #[test] // rule 51
        fn names_are_valid_for_their_kinds(instance in "[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?", node in "[a-z0-9]([a-z0-9-]{0,200}[a-z0-9])?") {
            let ends_well = |name: &str| name.ends_with(|c: char| c.is_ascii_alphanumeric());
            let service = service_name(&instance);
            prop_assert!(service.len() <= 63 && !service.contains('.') && ends_well(&service));
            prop_assert!(service.starts_with(|c: char| c.is_ascii_lowercase()));
            let job = job_name(&instance, i64::MAX);
            prop_assert!(job.len() <= 63 && !job.contains('.') && ends_well(&job));
            let label = label_value(&node);
            prop_assert!(label.len() <= 63 && ends_well(&label));
            let pod = pod_name(&instance, &node, true);
            prop_assert!(pod.len() <= 253 && ends_well(&pod));
        }
    }
}
