//! The differences that an object which was made for upstream Akri meets here.

use akri_api::manifest::typed;
use akri_api::{IDENTITY_ANNOTATION, validate};
use akri_model::names::{LONG_CONFIGURATION_NAME, MAX_CONFIGURATION_NAME};
use akri_model::text::dotted;
use serde_json::{Value, json};

use super::Weight::{self, Differs, InTheWay, TakenOver};
use super::udev_rules::differences;
use super::{spec_of, text, workloads};

/// Built-in handlers, each with what identifies a device where that differs, and the detail that keeps it as it was.
pub(super) const HANDLERS: [(&str, Option<(&str, &str)>); 5] = [
    ("udev", None),
    ("mdns", None),
    ("debugEcho", None),
    ("onvif", Some(("a device is its camera's UUID, where upstream's also had its URL", "identifyBy: UrlAndUuid"))),
    (
        "opcua",
        Some(("a device is its server's application URI, where upstream's was the URL", "identifyBy: ListedUrl")),
    ),
];
const RENAMED: &str = "its Instances get other names, and with them brokers, Services and variables with a suffix (..._<HASH>) are made \
                       anew; upstream's go 5 minutes later, and no Job runs again";

/// Returns what differs for an object, which is one of all.
pub(super) fn check(object: &Value, all: &[Value]) -> Vec<(Weight, String)> {
    match (text(object, "/apiVersion"), text(object, "/kind")) {
        ("akri.sh/v0", "Configuration") => configuration(object),
        ("akri.sh/v0", "Instance") => instance(object, all).into_iter().collect(),
        _ => workloads::check(object).into_iter().collect(),
    }
}

/// Returns the changes that an Instance will undergo; ours have the annotation.
fn instance(object: &Value, all: &[Value]) -> Option<(Weight, String)> {
    let annotations = object.pointer("/metadata/annotations");
    if annotations.is_some_and(|annotations| annotations.get(IDENTITY_ANNOTATION).is_some()) {
        return None;
    }
    let used = object.pointer("/spec/deviceUsage").and_then(Value::as_object).into_iter().flatten();
    let used = used.filter(|(_, usage)| usage.as_str().is_some_and(|usage| !usage.is_empty())).count();
    let finalizers = finalizers(object).map(|finalizers| format!("; the {finalizers}")).unwrap_or_default();
    let owner = (text(object, "/metadata/namespace"), text(object, "/spec/configurationName"));
    let is_owner = |other: &&Value| {
        let key = (text(other, "/metadata/namespace"), text(other, "/metadata/name"));
        text(other, "/kind") == "Configuration" && key == owner
    };
    let Some((_, detail)) = all.iter().find(is_owner).and_then(identity) else {
        return Some((TakenOver, format!("adopted with its {used} used slots{finalizers}")));
    };
    let message = format!(
        "another Instance takes its place, with brokers and Services of its own; this one goes 5 minutes later, with its {used} used slots: \
         '{detail}' in discoveryDetails of {} keeps it",
        owner.1
    );
    Some((Differs, message))
}

fn configuration(object: &Value) -> Vec<(Weight, String)> {
    let checks: [fn(&Value) -> Option<String>; 7] =
        [handler, secrets, user_names, long_name, release, privileged, placeholder];
    let differs = checks.into_iter().filter_map(|check| check(object)).chain(udev(object));
    let refused = invalid(object).into_iter().chain(ports(object)).map(|message| (InTheWay, message));
    let finalizers = finalizers(object).map(|message| (TakenOver, message));
    refused.chain(differs.map(|message| (Differs, message))).chain(finalizers).collect()
}

/// Returns the fields that the webhook refuses and the agent ignores.
fn invalid(object: &Value) -> Vec<String> {
    let errors = typed(&spec_of(object)).map_or_else(|errors| errors, |object| validate::configuration(&object));
    errors.iter().map(|error| format!("{}: {}", dotted(&error.path), error.message)).collect()
}

/// Returns the ports of Services that the API server refuses, and the webhook with it.
fn ports(object: &Value) -> Vec<String> {
    let of = |service: &str| {
        let ports = object.pointer(&format!("/spec/{service}/ports")).and_then(Value::as_array);
        let refused = ports.into_iter().flatten().enumerate().filter(|(_, port)| port.get("port") == Some(&json!(0)));
        refused.map(|(index, _)| format!("spec.{service}.ports[{index}].port: 0 is no port")).collect::<Vec<_>>()
    };
    [of("instanceServiceSpec"), of("configurationServiceSpec")].concat()
}

fn handler(object: &Value) -> Option<String> {
    let name = text(object, "/spec/discoveryHandler/name");
    match HANDLERS.iter().find(|(built_in, _)| *built_in == name) {
        Some(_) => identity(object).map(|(identity, detail)| {
            format!(
                "{identity}: {RENAMED}. To keep all of them, write '{detail}' into discoveryDetails (of the chart: \
                 {name}.configuration.discoveryDetails)"
            )
        }),
        None if name.is_empty() => None,
        None => Some(format!(
            "the handler '{name}' is not built in: keep its DaemonSet, which registers on the same socket as before; what it may \
             hand out is what --remote-path of the agent lists, by default serial ports, video, input, sound and USB"
        )),
    }
}

/// Returns what identifies devices of a Configuration where that differs, and the detail that keeps it as it was.
fn identity(object: &Value) -> Option<(&'static str, &'static str)> {
    let name = text(object, "/spec/discoveryHandler/name");
    let identity = HANDLERS.iter().find(|(built_in, _)| *built_in == name).and_then(|(_, identity)| *identity);
    let by = details(object).get("identifyBy").and_then(Value::as_str).map(|by| format!("identifyBy: {by}"));
    identity.filter(|(_, detail)| by.as_deref() != Some(*detail))
}

fn details(object: &Value) -> Value {
    serde_saphyr::from_str(text(object, "/spec/discoveryHandler/discoveryDetails")).unwrap_or_default()
}

fn udev(object: &Value) -> Vec<String> {
    if text(object, "/spec/discoveryHandler/name") != "udev" {
        return Vec::new();
    }
    let details = details(object);
    let rules = details.get("udevRules").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    let differs = rules.flat_map(|rule| differences(rule).map(move |message| format!("the rule {rule}: {message}")));
    let permissions = "containers may read and write device nodes (rw), and with upstream also make such (rwm): if they need that, \
                       write 'permissions: rwm' into discoveryDetails";
    let is_open = details.get("permissions").is_none();
    differs.chain(is_open.then(|| permissions.to_owned())).collect()
}

fn secrets(object: &Value) -> Option<String> {
    let properties = object.pointer("/spec/discoveryHandler/discoveryProperties").and_then(Value::as_array)?;
    let refers = |property: &Value| property.get("valueFrom").is_some_and(|from| !from.is_null());
    let message = "the agent reads Secrets and ConfigMaps only where a Role lets its service account, and who writes the \
                   Configuration has to be allowed to read its Secrets: see the comment in deploy/akri.yaml";
    properties.iter().any(refers).then(|| message.to_owned())
}

/// A device is withheld if a value of a Secret is in its properties, such as `admin` in a URL.
fn user_names(object: &Value) -> Option<String> {
    let properties = object.pointer("/spec/discoveryHandler/discoveryProperties").and_then(Value::as_array)?;
    let is_secret = |property: &&Value| property.pointer("/valueFrom/secretKeyRef").is_some_and(|from| !from.is_null());
    let mut names = properties.iter().filter(is_secret).map(|property| text(property, "/name"));
    // A list of credentials may refer to it by any name.
    let is_referred = |name: &str| {
        let reference = format!("\"{name}\"");
        let values = properties.iter().map(|property| text(property, "/value"));
        values.filter_map(|value| value.split_once("username_ref")).any(|(_, rest)| rest.contains(&reference))
    };
    let name = names.find(|name| name.to_lowercase().contains("username") || is_referred(name))?;
    Some(format!(
        "'{name}' comes from a Secret, so that a camera with that text in a property, such as its URL, is withheld: write the user name \
         as 'value', or keep it out of Secrets"
    ))
}

/// Upstream's chart makes brokers of udev privileged.
fn privileged(object: &Value) -> Option<String> {
    let is_charts = object.pointer("/metadata/annotations/meta.helm.sh~1release-name").is_some();
    let mut containers = pod_specs(object).filter_map(|spec| spec.get("containers")?.as_array()).flatten();
    let is_privileged = containers.any(|one| one.pointer("/securityContext/privileged") == Some(&Value::Bool(true)));
    let is_it = is_charts && is_privileged && text(object, "/spec/discoveryHandler/name") == "udev";
    is_it.then(|| {
        "its broker is privileged by a default of upstream's chart, and is not when ours starts it next: if it needs that, set \
         udev.configuration.brokerPod.securityContext.privileged=true"
            .to_owned()
    })
}

/// A broker without the placeholder gets a slot all the same (rule 38).
fn placeholder(object: &Value) -> Option<String> {
    let has_none =
        |spec: &Value| !spec.to_string().contains("{{PLACEHOLDER}}") && !spec.to_string().contains("\"akri.sh/");
    let is_default = object.pointer("/spec/resources").is_none_or(|resources| resources != "configuration");
    (is_default && pod_specs(object).any(has_none)).then(|| {
        "its broker names no device, so that upstream gave it no slot; here its first container gets one, and it waits while none is free: \
         raise the capacity if other pods need the slots"
            .to_owned()
    })
}

fn pod_specs(object: &Value) -> impl Iterator<Item = &Value> {
    let paths = ["/spec/brokerSpec/brokerPodSpec", "/spec/brokerSpec/brokerJobSpec/template/spec"];
    paths.into_iter().filter_map(|path| object.pointer(path)).filter(|spec| !spec.is_null())
}

/// `helm uninstall` goes by the manifests of the release, whatever annotations the object has.
fn release(object: &Value) -> Option<String> {
    let annotation =
        |name: &str| object.pointer(&format!("/metadata/annotations/meta.helm.sh~1{name}")).and_then(Value::as_str);
    let (name, namespace) = (annotation("release-name")?, annotation("release-namespace")?);
    Some(format!(
        "it belongs to the release {name} of helm, and 'helm uninstall' would delete it with its Instances: keep the release and \
         upgrade it, with 'helm upgrade {name} --namespace {namespace}'"
    ))
}

fn long_name(object: &Value) -> Option<String> {
    let length = text(object, "/metadata/name").len();
    let is_long = (LONG_CONFIGURATION_NAME + 1..=MAX_CONFIGURATION_NAME).contains(&length);
    let message = format!(
        "its name has {length} characters: two devices whose hashes begin alike cannot both get an Instance above \
         {LONG_CONFIGURATION_NAME}"
    );
    is_long.then_some(message)
}

/// Upstream's agents put the bare name of their node there; finalizers without a domain are theirs, but for Kubernetes' own.
fn finalizers(object: &Value) -> Option<String> {
    let all = object.pointer("/metadata/finalizers").and_then(Value::as_array).into_iter().flatten();
    let is_node = |name: &&str| !name.contains('/') && !["orphan", "foregroundDeletion"].contains(name);
    let nodes: Vec<&str> = all.filter_map(Value::as_str).filter(is_node).collect();
    (!nodes.is_empty()).then(|| format!("finalizers of upstream's agents ({}) are removed", nodes.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(spec: Value) -> Vec<(Weight, String)> {
        let object =
            json!({"apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": "cam"}, "spec": spec});
        check(&object, &[])
    }

    #[track_caller]
    fn assert_one(spec: Value, weight: Weight, part: &str) {
        let found = findings(spec);
        assert!(found.len() == 1 && found[0].0 == weight && found[0].1.contains(part), "{part}: {found:?}");
    }

    fn udev(rule: &str) -> Value {
        let details = format!("udevRules:\n- '{rule}'\npermissions: rwm\n");
        json!({"discoveryHandler": {"name": "udev", "discoveryDetails": details}})
    }

    #[test] // rule 65
    fn unchanged_behaviour_is_not_mentioned() {
        assert_eq!(findings(udev("KERNEL==\"video[0-9]*\"")), []);
        assert_eq!(findings(json!({"discoveryHandler": {"name": "debugEcho"}, "capacity": 2})), []);
    }

    #[test] // rule 65
    fn differences_name_what_to_do() {
        assert_one(json!({"discoveryHandler": {"name": "onvif"}}), Differs, "camera's UUID");
        assert_one(json!({"discoveryHandler": {"name": "onvif"}}), Differs, "write 'identifyBy: UrlAndUuid'");
        assert_one(json!({"discoveryHandler": {"name": "opcua"}}), Differs, "application URI");
        let kept = json!({"name": "opcua", "discoveryDetails": "identifyBy: ListedUrl"});
        assert_eq!(findings(json!({"discoveryHandler": kept})), []);
        let broker = |resources: Value| {
            let container = json!({"name": "b", "image": "b", "resources": resources});
            json!({"discoveryHandler": {"name": "debugEcho"}, "brokerSpec": {"brokerPodSpec": {"containers": [container]}}})
        };
        assert_one(broker(json!({"limits": {"cpu": "1"}})), Differs, "its first container gets one");
        assert_eq!(findings(broker(json!({"limits": {"{{PLACEHOLDER}}": "1"}}))), []);
        assert_one(json!({"discoveryHandler": {"name": "http"}}), Differs, "keep its DaemonSet");
        assert_one(
            json!({"discoveryHandler": {"name": "debugEcho"}, "capacity": 0}),
            InTheWay,
            "spec.capacity: 0 is not between",
        );
        assert_one(
            json!({"discoveryHandler": {"name": "debugEcho"}, "brokerPodSpec": {}}),
            InTheWay,
            "spec.brokerSpec.brokerPodSpec",
        );
        assert_one(udev("ENV{A}==\"1\", ENV{B}==\"2\""), Differs, "all of its matches have to hold");
        let without = json!({"name": "udev", "discoveryDetails": "udevRules: ['KERNEL==\"a\"']"});
        assert_one(json!({"discoveryHandler": without}), Differs, "'permissions: rwm'");
        let secret = json!([{"name": "p", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]);
        assert_one(
            json!({"discoveryHandler": {"name": "debugEcho", "discoveryProperties": secret}}),
            Differs,
            "a Role lets",
        );
        let references = json!({"uuid": {"username_ref": "login", "password_ref": "key"}}).to_string();
        for name in ["username_default", "device1_username", "login"] {
            let user = json!([
                {"name": name, "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                {"name": "device_credential_ref_list", "value": references},
            ]);
            let found = findings(json!({"discoveryHandler": {"name": "debugEcho", "discoveryProperties": user}}));
            let expected = format!("'{name}' comes from a Secret");
            assert!(found.iter().any(|(_, message)| message.contains(&expected)), "{found:?}");
        }
    }

    #[test]
    fn names_are_measured() {
        let weight = |length: usize| {
            let object = json!({"apiVersion": "akri.sh/v0", "kind": "Configuration",
                "metadata": {"name": "c".repeat(length)}, "spec": {"discoveryHandler": {"name": "debugEcho"}}});
            check(&object, &[]).first().map(|(weight, _)| *weight)
        };
        assert_eq!([weight(52), weight(53), weight(57)], [None, Some(Differs), Some(InTheWay)]);
    }

    #[test] // rule 65
    fn instances_of_upstream_are_adopted() {
        let upstream = json!({
            "apiVersion": "akri.sh/v0",
            "kind": "Instance",
            "metadata": {"name": "cam-1", "finalizers": ["node-a", "example.com/x", "orphan"]},
            "spec": {"deviceUsage": {"cam-1-0": "node-a", "cam-1-1": ""}},
        });
        let expected = "adopted with its 1 used slots; the finalizers of upstream's agents (node-a) are removed";
        assert_eq!(check(&upstream, &[]), [(TakenOver, expected.to_owned())]);
        let ours = json!({"apiVersion": "akri.sh/v0", "kind": "Instance",
            "metadata": {"annotations": {"akri.sh/identity": "0"}}});
        assert_eq!(check(&ours, &[]), []);
    }

    #[test] // rule 65
    fn instances_that_get_other_names_are_named() {
        let instance = json!({"apiVersion": "akri.sh/v0", "kind": "Instance", "metadata": {"namespace": "n", "name": "cam-1"},
            "spec": {"configurationName": "cam", "deviceUsage": {"cam-1-0": "node-a"}}});
        let weight = |details: &str| {
            let configuration = json!({"kind": "Configuration", "metadata": {"namespace": "n", "name": "cam"},
                "spec": {"discoveryHandler": {"name": "onvif", "discoveryDetails": details}}});
            check(&instance, &[instance.clone(), configuration]).remove(0)
        };
        assert_eq!(weight("identifyBy: UrlAndUuid").0, TakenOver);
        let (weight, message) = weight("");
        assert!(
            weight == Differs && message.contains("'identifyBy: UrlAndUuid' in discoveryDetails of cam"),
            "{message}"
        );
    }

    #[test] // rule 65
    fn brokers_that_lose_privileges_are_named() {
        let container = json!({"name": "b", "image": "b", "securityContext": {"privileged": true},
            "resources": {"limits": {"{{PLACEHOLDER}}": "1"}}});
        let found = |annotations: Value| {
            let spec = json!({"discoveryHandler": {"name": "udev", "discoveryDetails": "permissions: rwm"},
                "brokerSpec": {"brokerPodSpec": {"containers": [container]}}});
            let metadata = json!({"name": "cam", "annotations": annotations});
            let object =
                json!({"apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": metadata, "spec": spec});
            check(&object, &[])
                .iter()
                .filter(|(_, message)| message.contains("securityContext.privileged=true"))
                .count()
        };
        let release = json!({"meta.helm.sh/release-name": "akri", "meta.helm.sh/release-namespace": "default"});
        assert_eq!((found(release), found(Value::Null)), (1, 0));
    }

    #[test] // rule 65
    fn objects_of_a_release_are_kept_with_it() {
        let annotations = json!({"meta.helm.sh/release-name": "akri", "meta.helm.sh/release-namespace": "default"});
        let object = json!({"apiVersion": "akri.sh/v0", "kind": "Configuration",
            "metadata": {"name": "cam", "annotations": annotations}, "spec": {"discoveryHandler": {"name": "debugEcho"}}});
        let found = check(&object, &[]);
        assert!(found.len() == 1 && found[0].1.contains("helm upgrade akri --namespace default"), "{found:?}");
    }
}
