//! Finds objects and workloads of upstream Akri in a cluster.

use akri_api::IDENTITY_ANNOTATION;
use serde_json::Value;

use super::{Finding, Weight, text};

/// Names of upstream's workloads that ours take the place of.
const AGENT: &str = "akri-agent-daemonset";
const CONTROLLER: &str = "akri-controller-deployment";
const WEBHOOK: &str = "akri-webhook-configuration";
const HANDLERS: [(&str, &str); 4] = [
    ("akri-udev-discovery-daemonset", "udev"),
    ("akri-onvif-discovery-daemonset", "onvif"),
    ("akri-opcua-discovery-daemonset", "opcua"),
    ("akri-debug-echo-discovery-daemonset", "debugEcho"),
];

/// Returns the changes that an Instance will undergo.
pub(super) fn instance(object: &Value) -> Vec<Finding> {
    let annotations = object.pointer("/metadata/annotations");
    if annotations.is_some_and(|annotations| annotations.get(IDENTITY_ANNOTATION).is_some()) {
        return Vec::new(); // ours
    }
    let used = object.pointer("/spec/deviceUsage").and_then(Value::as_object).into_iter().flatten();
    let used = used.filter(|(_, usage)| usage.as_str().is_some_and(|usage| !usage.is_empty())).count();
    let finalizers = node_finalizers(object).join(", ");
    let message = match finalizers.is_empty() {
        true => format!("adopted with its {used} used slots"),
        false => format!(
            "adopted with its {used} used slots; the finalizers of upstream's agents ({finalizers}) are removed"
        ),
    };
    vec![Finding::new(Weight::TakenOver, object, message)]
}

/// Returns workloads of upstream Akri, which must not run beside ours: both would answer the kubelet for the same
/// devices.
pub(super) fn workload(object: &Value) -> Vec<Finding> {
    let name = text(object, "/metadata/name");
    let found = |message: String| vec![Finding::new(Weight::InTheWay, object, message)];
    match (text(object, "/kind"), name) {
        ("DaemonSet", AGENT) => {
            found("upstream's agent: delete it before ours is installed; pods keep their devices meanwhile".to_owned())
        }
        ("Deployment", CONTROLLER) => found("upstream's controller: delete it before ours is installed".to_owned()),
        ("Deployment" | "ValidatingWebhookConfiguration", WEBHOOK) => found(
            "upstream's webhook: delete it; it refuses fields that are newer than itself, and everything once its Pod is gone"
                .to_owned(),
        ),
        ("DaemonSet", name) => HANDLERS
            .iter()
            .find(|(daemon_set, _)| *daemon_set == name)
            .map(|(_, handler)| found(format!("upstream's handler '{handler}' is built in here: delete the DaemonSet")))
            .unwrap_or_default(),
        _ => Vec::new(),
    }
}

/// Finalizers without a domain are those of upstream's agents, but for Kubernetes' own.
pub(super) fn node_finalizers(object: &Value) -> Vec<String> {
    let all = object.pointer("/metadata/finalizers").and_then(Value::as_array).into_iter().flatten();
    let names = all.filter_map(Value::as_str);
    let is_node = |name: &&str| !name.contains('/') && !["orphan", "foregroundDeletion"].contains(name);
    names.filter(is_node).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test] // rule 65
    fn instances_of_upstream_are_adopted() {
        let upstream = json!({
            "kind": "Instance",
            "metadata": {"name": "cam-1", "finalizers": ["node-a", "example.com/x", "orphan"]},
            "spec": {"deviceUsage": {"cam-1-0": "node-a", "cam-1-1": ""}},
        });
        let found = instance(&upstream);
        assert_eq!(found[0].weight, Weight::TakenOver);
        let expected = "adopted with its 1 used slots; the finalizers of upstream's agents (node-a) are removed";
        assert_eq!(found[0].message, expected);
        let ours = json!({"kind": "Instance", "metadata": {"annotations": {"akri.sh/identity": "0"}}});
        assert_eq!(instance(&ours), []);
    }

    #[test] // rule 65
    fn what_upstream_runs_is_in_the_way() {
        let weight = |kind: &str, name: &str| {
            let object = json!({"kind": kind, "metadata": {"name": name}});
            workload(&object).first().map(|finding| finding.weight)
        };
        for (kind, name) in [
            ("DaemonSet", AGENT),
            ("Deployment", CONTROLLER),
            ("Deployment", WEBHOOK),
            ("ValidatingWebhookConfiguration", WEBHOOK),
            ("DaemonSet", "akri-udev-discovery-daemonset"),
        ] {
            assert_eq!(weight(kind, name), Some(Weight::InTheWay), "{kind} {name}");
        }
        assert_eq!([weight("DaemonSet", "akri-agent"), weight("Deployment", "web")], [None, None]);
    }
}
