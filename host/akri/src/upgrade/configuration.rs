//! Predicts the effect of a Configuration that was written for upstream Akri.

use akri_api::manifest::{dotted, typed};
use akri_api::{Configuration, validate};
use akri_model::names::LONG_CONFIGURATION_NAME;
use serde_json::{Value, json};

use super::{Finding, Weight, text};

/// Handlers that are built in.
const BUILT_IN: [&str; 5] = ["udev", "onvif", "opcua", "mdns", "debugEcho"];

/// Returns the differences.
pub(super) fn check(object: &Value) -> Vec<Finding> {
    let mut findings = invalid(object);
    findings.extend(handler(object));
    findings.extend(udev_rules(object));
    findings.extend(secrets(object));
    findings.extend(long_name(object));
    findings.extend(finalizers(object));
    findings
}

/// Returns the fields that the webhook refuses and the agent ignores.
fn invalid(object: &Value) -> Vec<Finding> {
    let metadata =
        json!({"name": object.pointer("/metadata/name"), "namespace": object.pointer("/metadata/namespace")});
    let spec = object.get("spec").cloned().unwrap_or_default();
    let errors = match typed::<Configuration>(&json!({"metadata": metadata, "spec": spec})) {
        Ok(configuration) => validate::configuration(&configuration),
        Err(errors) => errors,
    };
    let finding = |error: validate::FieldError| {
        Finding::new(Weight::InTheWay, object, format!("{}: {}", dotted(&error.path), error.message))
    };
    errors.into_iter().map(finding).collect()
}

fn handler(object: &Value) -> Option<Finding> {
    let name = text(object, "/spec/discoveryHandler/name");
    let message = match name {
        "onvif" => {
            "a device is its camera's UUID, where upstream's also had its URL: its Instance gets another name once, its old one \
             goes after the grace period, and environment variables with the suffix of the old name (..._<HASH>) with it; those \
             without a suffix stay"
        }
        "opcua" => {
            "a device is its server's application URI, where upstream's was the URL: its Instance gets another name once, its \
             old one goes after the grace period, and environment variables with the suffix of the old name (..._<HASH>) with \
             it; those without a suffix stay"
        }
        "" => return None,
        name if BUILT_IN.contains(&name) => return None,
        name => {
            let message = format!(
                "the handler '{name}' is not built in: keep its DaemonSet, which registers on the same socket as before; what \
                 it may hand out is devices below /dev unless the agent has --trust-remote-paths"
            );
            return Some(Finding::new(Weight::Differs, object, message));
        }
    };
    Some(Finding::new(Weight::Differs, object, message))
}

/// Upstream asks libudev for some matches, which joins those of one field by OR, and takes others for regular expressions.
fn udev_rules(object: &Value) -> Vec<Finding> {
    if text(object, "/spec/discoveryHandler/name") != "udev" {
        return Vec::new();
    }
    let details = text(object, "/spec/discoveryHandler/discoveryDetails");
    let details: Value = serde_saphyr::from_str(details).unwrap_or_default();
    let rules = details.get("udevRules").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let finding = |message: String| Finding::new(Weight::Differs, object, message);
    rules.iter().filter_map(Value::as_str).flat_map(rule).map(finding).collect()
}

fn rule(rule: &str) -> Vec<String> {
    let count = |field: &str| rule.matches(field).count();
    let is_equal = |field: &str| rule.split(',').any(|part| part.trim().starts_with(field) && part.contains("=="));
    let mut messages = Vec::new();
    if count("ENV{") > 1 || rule.split(',').filter(|part| part.trim().starts_with("KERNEL==")).count() > 1 {
        messages.push(format!(
            "the rule {rule}: all of its matches have to hold, as in udev; upstream took one of them for enough"
        ));
    }
    if is_equal("DEVPATH") {
        messages.push(format!(
            "the rule {rule}: DEVPATH narrows the devices, as in udev; upstream took all devices there are"
        ));
    }
    let globs = ["KERNELS", "SUBSYSTEMS", "DRIVERS", "DRIVER", "ATTRS{", "TAGS"];
    let is_regex = |part: &str| {
        globs.iter().any(|field| part.starts_with(field)) && part.contains(['*', '?', '[', '(', '+', '^', '$', '|'])
    };
    if rule.split(',').any(|part| is_regex(part.trim())) {
        messages.push(format!(
            "the rule {rule}: values are globs, as in udev; upstream took those of {} for regular expressions",
            globs.join(", ")
        ));
    }
    messages
}

fn secrets(object: &Value) -> Option<Finding> {
    let properties = object.pointer("/spec/discoveryHandler/discoveryProperties").and_then(Value::as_array)?;
    let refers = |property: &Value| property.get("valueFrom").is_some_and(|from| !from.is_null());
    let message = "the agent reads Secrets and ConfigMaps only where a Role lets its service account, and who writes the \
                   Configuration has to be allowed to read its Secrets: see the comment in deploy/akri.yaml";
    properties.iter().any(refers).then(|| Finding::new(Weight::Differs, object, message))
}

fn long_name(object: &Value) -> Option<Finding> {
    let length = text(object, "/metadata/name").len();
    let is_long = (LONG_CONFIGURATION_NAME + 1..=akri_model::names::MAX_CONFIGURATION_NAME).contains(&length);
    let message = format!(
        "its name has {length} characters: two devices whose hashes begin alike cannot both get an Instance above \
         {LONG_CONFIGURATION_NAME}"
    );
    is_long.then(|| Finding::new(Weight::Differs, object, message))
}

/// Upstream's agents put the bare name of their node there.
fn finalizers(object: &Value) -> Option<Finding> {
    let finalizers = super::leftovers::node_finalizers(object);
    let message = format!("finalizers of upstream's agents ({}) are removed", finalizers.join(", "));
    (!finalizers.is_empty()).then(|| Finding::new(Weight::TakenOver, object, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(spec: Value) -> Vec<(Weight, String)> {
        let object = json!({"kind": "Configuration", "metadata": {"name": "cam"}, "spec": spec});
        check(&object).into_iter().map(|finding| (finding.weight, finding.message)).collect()
    }

    #[track_caller]
    fn assert_one(spec: Value, weight: Weight, part: &str) {
        let found = messages(spec);
        assert!(found.len() == 1 && found[0].0 == weight && found[0].1.contains(part), "{part}: {found:?}");
    }

    fn udev(rule: &str) -> Value {
        json!({"discoveryHandler": {"name": "udev", "discoveryDetails": format!("udevRules:\n- '{rule}'\n")}})
    }

    #[test] // rule 65
    fn what_works_as_before_is_not_mentioned() {
        for rule in ["KERNEL==\"video[0-9]*\"", "SUBSYSTEM==\"tty\", ENV{ID_BUS}==\"usb\"", "ATTRS{idVendor}==\"1d6b\""]
        {
            assert_eq!(messages(udev(rule)), [], "{rule}");
        }
        assert_eq!(messages(json!({"discoveryHandler": {"name": "debugEcho"}, "capacity": 2})), []);
    }

    #[test] // rule 65
    fn what_differs_is_said_with_what_to_do() {
        use Weight::{Differs, InTheWay};
        assert_one(json!({"discoveryHandler": {"name": "onvif"}}), Differs, "camera's UUID");
        assert_one(json!({"discoveryHandler": {"name": "opcua"}}), Differs, "application URI");
        assert_one(json!({"discoveryHandler": {"name": "http"}}), Differs, "keep its DaemonSet");
        assert_one(
            json!({"discoveryHandler": {"name": "udev"}, "capacity": 0}),
            InTheWay,
            "spec.capacity: 0 is not between",
        );
        assert_one(
            json!({"discoveryHandler": {"name": "udev"}, "brokerPodSpec": {}}),
            InTheWay,
            "spec.brokerSpec.brokerPodSpec",
        );
        assert_one(udev("ENV{A}==\"1\", ENV{B}==\"2\""), Differs, "all of its matches have to hold");
        assert_one(udev("DEVPATH==\"/devices/x\""), Differs, "DEVPATH narrows");
        assert_one(udev("KERNELS==\"usb.+\""), Differs, "values are globs");
        let secret = json!([{"name": "p", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]);
        assert_one(
            json!({"discoveryHandler": {"name": "udev", "discoveryProperties": secret}}),
            Differs,
            "a Role lets",
        );
    }

    #[test]
    fn names_are_measured() {
        let weight = |length: usize| {
            let object =
                json!({"metadata": {"name": "c".repeat(length)}, "spec": {"discoveryHandler": {"name": "udev"}}});
            check(&object).first().map(|finding| finding.weight)
        };
        assert_eq!([weight(52), weight(53), weight(57)], [None, Some(Weight::Differs), Some(Weight::InTheWay)]);
    }
}
