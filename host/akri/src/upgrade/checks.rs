//! The differences that an object which was made for upstream Akri meets here.

use akri_api::manifest::{dotted, typed};
use akri_api::{Configuration, IDENTITY_ANNOTATION, validate};
use akri_model::names::{LONG_CONFIGURATION_NAME, MAX_CONFIGURATION_NAME};
use serde_json::{Value, json};

use super::Weight::{self, Differs, InTheWay, TakenOver};
use super::text;
use super::udev_rules::differences;

/// Workloads of upstream Akri by kind and name. None may run beside ours: both would answer the kubelet for the same devices.
const WORKLOADS: [(&str, &str, &str); 4] = [
    (
        "DaemonSet",
        "akri-agent-daemonset",
        "upstream's agent: delete it before ours is installed; pods keep their devices meanwhile",
    ),
    ("Deployment", "akri-controller-deployment", "upstream's controller: delete it before ours is installed"),
    ("Deployment", "akri-webhook-configuration", WEBHOOK),
    ("ValidatingWebhookConfiguration", "akri-webhook-configuration", WEBHOOK),
];
const WEBHOOK: &str = "upstream's webhook: delete it; it refuses fields that are newer than itself, and everything once its Pod \
                       is gone";

/// Built-in handlers, each with what identifies a device where that differs.
const HANDLERS: [(&str, Option<&str>); 5] = [
    ("udev", None),
    ("mdns", None),
    ("debugEcho", None),
    ("onvif", Some("a device is its camera's UUID, where upstream's also had its URL")),
    ("opcua", Some("a device is its server's application URI, where upstream's was the URL")),
];
const RENAMED: &str = "its Instance gets another name once, its old one goes after the grace period, and environment variables \
                       with the suffix of the old name (..._<HASH>) with it; those without a suffix stay";

/// Returns what differs for an object.
pub(super) fn check(object: &Value) -> Vec<(Weight, String)> {
    match (text(object, "/apiVersion"), text(object, "/kind")) {
        ("akri.sh/v0", "Configuration") => configuration(object),
        ("akri.sh/v0", "Instance") => instance(object).into_iter().collect(),
        (_, "RoleBinding" | "ClusterRoleBinding") => binding(object).into_iter().collect(),
        (_, kind) => workload(kind, text(object, "/metadata/name")).into_iter().collect(),
    }
}

fn workload(kind: &str, name: &str) -> Option<(Weight, String)> {
    let daemon_set = |handler: &str| format!("akri-{}-discovery-daemonset", handler.replace("debugEcho", "debug-echo"));
    let built_in = HANDLERS.iter().find(|(handler, _)| kind == "DaemonSet" && daemon_set(handler) == name);
    if let Some((handler, _)) = built_in {
        return Some((InTheWay, format!("upstream's handler '{handler}' is built in here: delete the DaemonSet")));
    }
    let (.., message) = WORKLOADS.iter().find(|(of_kind, of_name, _)| (*of_kind, *of_name) == (kind, name))?;
    Some((InTheWay, (*message).to_owned()))
}

/// Bindings for upstream's agent, but for that of its chart: a person has made them, so that it reads Secrets.
fn binding(object: &Value) -> Option<(Weight, String)> {
    let subjects = object.get("subjects").and_then(Value::as_array).into_iter().flatten();
    let mut agents = subjects.filter(|subject| text(subject, "/name") == "akri-agent-sa");
    let namespace = text(agents.next()?, "/namespace");
    let is_charts = text(object, "/metadata/name") == "akri-agent-binding";
    let message = format!(
        "its subject akri-agent-sa is upstream's agent; ours is akri-agent: add the subject {{kind: ServiceAccount, name: akri-agent, \
         namespace: {namespace}}}"
    );
    (!is_charts).then_some((Differs, message))
}

/// Returns the changes that an Instance will undergo; ours have the annotation.
fn instance(object: &Value) -> Option<(Weight, String)> {
    let annotations = object.pointer("/metadata/annotations");
    if annotations.is_some_and(|annotations| annotations.get(IDENTITY_ANNOTATION).is_some()) {
        return None;
    }
    let used = object.pointer("/spec/deviceUsage").and_then(Value::as_object).into_iter().flatten();
    let used = used.filter(|(_, usage)| usage.as_str().is_some_and(|usage| !usage.is_empty())).count();
    let finalizers = finalizers(object).map(|finalizers| format!("; the {finalizers}")).unwrap_or_default();
    Some((TakenOver, format!("adopted with its {used} used slots{finalizers}")))
}

fn configuration(object: &Value) -> Vec<(Weight, String)> {
    let differs = [handler(object), secrets(object), user_names(object), long_name(object), release(object)];
    let differs = differs.into_iter().flatten().chain(udev(object));
    let refused = invalid(object).into_iter().map(|message| (InTheWay, message));
    let finalizers = finalizers(object).map(|message| (TakenOver, message));
    refused.chain(differs.map(|message| (Differs, message))).chain(finalizers).collect()
}

/// Returns the fields that the webhook refuses and the agent ignores.
fn invalid(object: &Value) -> Vec<String> {
    let metadata =
        json!({"name": object.pointer("/metadata/name"), "namespace": object.pointer("/metadata/namespace")});
    let spec = object.get("spec").cloned().unwrap_or_default();
    let configuration = typed::<Configuration>(&json!({"metadata": metadata, "spec": spec}));
    let errors = configuration.map_or_else(|errors| errors, |configuration| validate::configuration(&configuration));
    errors.iter().map(|error| format!("{}: {}", dotted(&error.path), error.message)).collect()
}

fn handler(object: &Value) -> Option<String> {
    let name = text(object, "/spec/discoveryHandler/name");
    match HANDLERS.iter().find(|(built_in, _)| *built_in == name) {
        Some((_, identity)) => identity.map(|identity| format!("{identity}: {RENAMED}")),
        None if name.is_empty() => None,
        None => Some(format!(
            "the handler '{name}' is not built in: keep its DaemonSet, which registers on the same socket as before; what it may \
             hand out is what --remote-path of the agent lists, by default serial ports, video, input, sound and USB"
        )),
    }
}

fn udev(object: &Value) -> Vec<String> {
    if text(object, "/spec/discoveryHandler/name") != "udev" {
        return Vec::new();
    }
    let details = text(object, "/spec/discoveryHandler/discoveryDetails");
    let details: Value = serde_saphyr::from_str(details).unwrap_or_default();
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
    let name = names.find(|name| name.starts_with("username_"))?;
    Some(format!(
        "'{name}' comes from a Secret, so that a camera with that text in a property, such as its URL, is withheld: write the user name \
         as 'value', or keep it out of Secrets"
    ))
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
        check(&json!({"apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": "cam"}, "spec": spec}))
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
        assert_one(json!({"discoveryHandler": {"name": "opcua"}}), Differs, "application URI");
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
        let user = json!([{"name": "username_default", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]);
        let found = findings(json!({"discoveryHandler": {"name": "debugEcho", "discoveryProperties": user}}));
        assert!(
            found.iter().any(|(_, message)| message.contains("'username_default' comes from a Secret")),
            "{found:?}"
        );
    }

    #[test]
    fn names_are_measured() {
        let weight = |length: usize| {
            let object = json!({"apiVersion": "akri.sh/v0", "kind": "Configuration",
                "metadata": {"name": "c".repeat(length)}, "spec": {"discoveryHandler": {"name": "debugEcho"}}});
            check(&object).first().map(|(weight, _)| *weight)
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
        assert_eq!(check(&upstream), [(TakenOver, expected.to_owned())]);
        let ours = json!({"apiVersion": "akri.sh/v0", "kind": "Instance",
            "metadata": {"annotations": {"akri.sh/identity": "0"}}});
        assert_eq!(check(&ours), []);
    }

    #[test] // rule 65
    fn objects_of_a_release_are_kept_with_it() {
        let annotations = json!({"meta.helm.sh/release-name": "akri", "meta.helm.sh/release-namespace": "default"});
        let object = json!({"apiVersion": "akri.sh/v0", "kind": "Configuration",
            "metadata": {"name": "cam", "annotations": annotations}, "spec": {"discoveryHandler": {"name": "debugEcho"}}});
        let found = check(&object);
        assert!(found.len() == 1 && found[0].1.contains("helm upgrade akri --namespace default"), "{found:?}");
    }

    #[test] // rule 65
    fn bindings_of_users_to_the_agent_are_named() {
        let binding = |name: &str, subject: &str| {
            let subject = json!({"kind": "ServiceAccount", "name": subject, "namespace": "default"});
            check(&json!({"kind": "RoleBinding", "metadata": {"name": name}, "subjects": [subject]}))
        };
        let found = binding("cameras", "akri-agent-sa");
        assert!(found.len() == 1 && found[0].1.contains("name: akri-agent, namespace: default"), "{found:?}");
        assert_eq!(
            (binding("cameras", "akri-agent"), binding("akri-agent-binding", "akri-agent-sa")),
            (vec![], vec![])
        );
    }

    #[test] // rule 65
    fn workloads_of_upstream_are_in_the_way() {
        let weight = |kind: &str, name: &str| workload(kind, name).map(|(weight, _)| weight);
        for (kind, name, _) in WORKLOADS {
            assert_eq!(weight(kind, name), Some(InTheWay), "{kind} {name}");
        }
        assert_eq!([weight("DaemonSet", "akri-agent"), weight("Deployment", "web")], [None, None]);
    }
}
