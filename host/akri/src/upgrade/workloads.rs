//! Parts of an installation of upstream Akri that would run beside ours, or refer to it.

use serde_json::Value;

use super::Weight::{self, Differs, InTheWay};
use super::checks::HANDLERS;
use super::text;

/// Workloads of upstream Akri by kind and name. None may run beside ours: both would answer the kubelet for the same devices.
const WORKLOADS: [(&str, &str, &str); 2] = [
    (
        "DaemonSet",
        "akri-agent-daemonset",
        "upstream's agent: delete it before ours is installed; pods keep their devices meanwhile",
    ),
    ("Deployment", "akri-controller-deployment", "upstream's controller: delete it before ours is installed"),
];
const WEBHOOK: &str = "upstream's webhook: delete it; it refuses fields that are newer than itself, and everything once its Pod \
                       is gone";

/// Returns what has to be done about an object that is none of Akri's kinds.
pub(super) fn check(object: &Value) -> Option<(Weight, String)> {
    match text(object, "/kind") {
        "RoleBinding" | "ClusterRoleBinding" => binding(object),
        kind => webhook(object).or_else(|| workload(kind, text(object, "/metadata/name"))),
    }
}

/// Upstream's webhook may have another name (`webhookConfiguration.name`).
fn webhook(object: &Value) -> Option<(Weight, String)> {
    let label = |name: &str| text(object, &format!("/metadata/labels/app.kubernetes.io~1{name}"));
    let is_its = match text(object, "/kind") {
        "Deployment" => {
            let is_charts = text(object, "/metadata/labels/helm.sh~1chart").starts_with("akri-");
            let is_webhook = is_charts && label("component") == "admission-webhook";
            is_webhook || text(object, "/metadata/name") == "akri-webhook-configuration"
        }
        "ValidatingWebhookConfiguration" => {
            let webhooks = object.get("webhooks").and_then(Value::as_array).into_iter().flatten();
            let rules = webhooks.filter_map(|webhook| webhook.get("rules")?.as_array()).flatten();
            let mut groups = rules.filter_map(|rule| rule.get("apiGroups")?.as_array()).flatten();
            groups.any(|group| group == "akri.sh") && label("name") != "akri-webhook"
        }
        _ => false,
    };
    is_its.then(|| (InTheWay, WEBHOOK.to_owned()))
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

/// Returns what to do about a binding for an account of upstream, but for those of its chart: a person has made it, so that Secrets
/// are read for example.
fn binding(object: &Value) -> Option<(Weight, String)> {
    let mut subjects = object.get("subjects").and_then(Value::as_array).into_iter().flatten();
    let (account, ours, subject) = subjects.find_map(|subject| {
        let account = text(subject, "/name");
        Some((
            account,
            account.strip_suffix("-sa").filter(|ours| ["akri-agent", "akri-controller"].contains(ours))?,
            subject,
        ))
    })?;
    let namespace = text(subject, "/namespace");
    let is_charts = text(object, "/metadata/name").strip_suffix("-binding") == Some(ours);
    let message = format!(
        "its subject {account} is upstream's; the account here is {ours}: add the subject {{kind: ServiceAccount, name: {ours}, \
         namespace: {namespace}}}"
    );
    (!is_charts).then_some((Differs, message))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test] // rule 65
    fn bindings_of_users_to_the_agent_are_named() {
        let binding = |name: &str, subject: &str| {
            let subject = json!({"kind": "ServiceAccount", "name": subject, "namespace": "default"});
            check(&json!({"kind": "RoleBinding", "metadata": {"name": name}, "subjects": [subject]}))
        };
        let found = binding("cameras", "akri-agent-sa");
        assert!(
            found.as_ref().is_some_and(|found| found.1.contains("name: akri-agent, namespace: default")),
            "{found:?}"
        );
        assert!(binding("jobs", "akri-controller-sa").is_some_and(|found| found.1.contains("name: akri-controller, ")));
        for (name, subject) in [
            ("cameras", "akri-agent"),
            ("akri-agent-binding", "akri-agent-sa"),
            ("akri-controller-binding", "akri-controller-sa"),
        ] {
            assert_eq!(binding(name, subject), None, "{name} {subject}");
        }
    }

    #[test] // rule 65
    fn workloads_of_upstream_are_in_the_way() {
        let weight = |kind: &str, name: &str| workload(kind, name).map(|(weight, _)| weight);
        for (kind, name, _) in WORKLOADS {
            assert_eq!(weight(kind, name), Some(InTheWay), "{kind} {name}");
        }
        assert_eq!([weight("DaemonSet", "akri-agent"), weight("Deployment", "web")], [None, None]);
        let rules = json!([{"apiGroups": ["akri.sh"], "resources": ["configurations"]}]);
        let registered = |name: &str| {
            let metadata = json!({"name": "any", "labels": {"app.kubernetes.io/name": name}});
            let object =
                json!({"kind": "ValidatingWebhookConfiguration", "metadata": metadata, "webhooks": [{"rules": rules}]});
            check(&object).is_some()
        };
        assert_eq!((registered("my-webhook"), registered("akri-webhook")), (true, false));
        let labels = json!({"helm.sh/chart": "akri-0.13.26", "app.kubernetes.io/component": "admission-webhook"});
        let webhook = json!({"kind": "Deployment", "metadata": {"name": "my-webhook", "labels": labels}});
        assert_eq!(check(&webhook), Some((InTheWay, WEBHOOK.to_owned())));
    }
}
