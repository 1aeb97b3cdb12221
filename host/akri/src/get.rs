//! `akri get`: the state of a local agent, from its state directory.

use std::path::Path;
use std::process::ExitCode;

use akri_agent::lock;
use akri_api::condition;
use akri_api::suggestion::did_you_mean;
use akri_api::{Configuration, DiscoveryHandlerStatus, HandlerKind, Instance};
use akri_cli::device::distinctive_property;
use akri_cli::output::{listing, plain, print, with_causes};
use akri_cluster::local::{read_configurations, read_handlers, read_instances, read_problems};
use akri_model::names::{RESOURCE_PREFIX, Usage, resource_name};
use akri_model::readiness::NOT_OFFERED;
use akri_model::text::shorten;
use akri_remote::read_remote_handlers;
use anyhow::{Context as _, ensure};
use kube::ResourceExt;
use serde::Serialize;

use crate::cli::{GetArgs, ListedKind};

/// Maximum length of a result in a table, in characters.
const RESULT: usize = 60;

/// Maximum length of a message, likewise; `-o yaml` and `akri why` have all of it.
const MESSAGE: usize = 100;

/// Prints the requested objects.
pub(crate) fn run(args: &GetArgs) -> anyhow::Result<ExitCode> {
    let state = &args.state_dir;
    ensure!(state.is_dir(), "no agent keeps its state in '{}'; name its directory with --state-dir", state.display());
    let is_state = state.join(lock::FILE).try_exists();
    let is_state =
        is_state.with_context(|| format!("cannot look into '{}'; it is the agent's alone", state.display()))?;
    ensure!(
        is_state,
        "'{}' is not the state directory of an agent; name its directory with --state-dir",
        state.display()
    );
    let problems = read_problems(state);
    if lock::is_free(state) {
        eprintln!("no agent runs on this state directory; this is how it was left");
    } else {
        problems.iter().for_each(|problem| eprintln!("warning: {}", plain(problem)));
    }
    match args.kind {
        ListedKind::Instances => {
            let instances = selected(args, "Instance", read_instances(state).map_err(with_causes)?)?;
            print(&instances, args.output, || instance_table(&instances, is_counted(&problems)))?;
        }
        ListedKind::Configurations => {
            let configurations = selected(args, "Configuration", read_configurations(state).map_err(with_causes)?)?;
            print(&configurations, args.output, || configuration_table(&configurations))?;
        }
        ListedKind::Handlers => {
            let mut handlers = handlers(state)?;
            if let Some(name) = &args.name {
                let names: Vec<String> = handlers.iter().flat_map(Handler::names).cloned().collect();
                handlers.retain(|handler| handler.names().any(|known| known == name));
                found(!handlers.is_empty(), "discovery handler", name, &names)?;
            }
            print(&handlers, args.output, || handler_table(&handlers))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the objects that the flags select. Fails if there is none of the given name.
fn selected<K: ResourceExt>(args: &GetArgs, kind: &str, mut objects: Vec<K>) -> anyhow::Result<Vec<K>> {
    if let Some(namespace) = &args.namespace {
        objects.retain(|object| object.namespace().as_ref() == Some(namespace));
    }
    if let Some(name) = &args.name {
        let name = name.strip_prefix(RESOURCE_PREFIX).unwrap_or(name);
        let names: Vec<String> = objects.iter().map(ResourceExt::name_any).collect();
        objects.retain(|object| object.name_any() == name);
        found(!objects.is_empty(), kind, name, &names)?;
    }
    Ok(objects)
}

fn found(is_there: bool, kind: &str, name: &str, names: &[String]) -> anyhow::Result<()> {
    let suggestion = did_you_mean(name, names.iter().map(String::as_str));
    ensure!(is_there, "there is no {kind} '{}'{suggestion}", plain(name));
    Ok(())
}

/// Returns the Instances of a state directory as a table; `None` if there is no state.
pub(crate) fn instances_of(state: &Path) -> Option<String> {
    let instances = read_instances(state).ok()?;
    (!instances.is_empty()).then(|| instance_table(&instances, is_counted(&read_problems(state))))
}

/// Returns whether a kubelet counts who uses devices, by the problems of the agent.
fn is_counted(problems: &[String]) -> bool {
    !problems.iter().any(|problem| problem.ends_with(NOT_OFFERED))
}

/// Returns the table of Instances. Without a kubelet nothing counts who uses them: what CDI hands out is not seen.
fn instance_table(instances: &[Instance], is_counted: bool) -> String {
    let header = ["NAMESPACE", "RESOURCE", "CONFIGURATION", "DEVICE", "USED", "ONLINE", "NODES"];
    listing("Instances", &header, instances, |instance| {
        let mut row = instance_row(instance);
        row.iter_mut()
            .skip(4)
            .take(usize::from(!is_counted && !is_used(instance)))
            .for_each(|used| *used = "-".to_owned());
        row
    })
}

fn is_used(instance: &Instance) -> bool {
    instance.spec.device_usage.values().any(|usage| !usage.is_empty())
}

fn instance_row(instance: &Instance) -> Vec<String> {
    let spec = &instance.spec;
    let is_unreadable = |usage: &&String| matches!(Usage::read(usage), Usage::Unreadable(_));
    let used = spec.device_usage.values().filter(|usage| !usage.is_empty()).count();
    let used = match spec.device_usage.values().filter(is_unreadable).count() {
        0 => format!("{used}/{}", spec.capacity),
        unreadable => format!("{used}/{} ({unreadable} unreadable)", spec.capacity),
    };
    let conditions = instance.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let online = condition::find(conditions, "Online").map_or("Unknown", |condition| condition.status.as_str());
    vec![
        instance.namespace().unwrap_or_default(),
        resource_name(&instance.name_any()),
        spec.configuration_name.clone(),
        distinctive_property(&spec.broker_properties),
        used,
        online.to_owned(),
        spec.nodes.join(","),
    ]
}

fn configuration_table(configurations: &[Configuration]) -> String {
    let header = ["NAMESPACE", "NAME", "INSTANCES", "READY", "COMPLETE", "REASON", "MESSAGE"];
    listing("Configurations", &header, configurations, configuration_row)
}

/// Returns the row of a Configuration. Reason and message are of the first condition that does not hold.
fn configuration_row(configuration: &Configuration) -> Vec<String> {
    let status = configuration.status.clone().unwrap_or_default();
    let [ready, complete] = ["Ready", "DiscoveryComplete"].map(|kind| condition::find(&status.conditions, kind));
    let is_false = |condition: &&condition::Condition| condition.status == "False";
    let telling = ready.filter(is_false).or(complete.filter(is_false)).or(ready);
    let truth = |condition: Option<&condition::Condition>| condition.map_or("-", |one| &one.status).to_owned();
    vec![
        configuration.namespace().unwrap_or_default(),
        configuration.name_any(),
        status.instances.to_string(),
        truth(ready),
        truth(complete),
        telling.map(|condition| plain(&condition.reason)).unwrap_or_default(),
        telling.map(|condition| shorten(&plain(&condition.message), MESSAGE)).unwrap_or_default(),
    ]
}

/// A discovery handler as shown.
#[derive(Debug, Serialize)]
struct Handler {
    /// The DiscoveryHandler object; remote handlers have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<String>,
    #[serde(flatten)]
    status: DiscoveryHandlerStatus,
}

impl Handler {
    fn names(&self) -> impl Iterator<Item = &String> {
        self.object.iter().chain(&self.status.handler)
    }
}

/// Returns components by object, then remote handlers by name.
fn handlers(state: &Path) -> anyhow::Result<Vec<Handler>> {
    let component = |object: akri_api::DiscoveryHandler| Handler {
        object: Some(object.name_any()),
        status: object.status.unwrap_or_default(),
    };
    let remote = |status| Handler { object: None, status };
    let components = read_handlers(state).map_err(with_causes)?.into_iter().map(component);
    Ok(components.chain(read_remote_handlers(state).map_err(with_causes)?.into_iter().map(remote)).collect())
}

fn handler_table(handlers: &[Handler]) -> String {
    let header = ["NAME", "OBJECT", "KIND", "STATE", "SINCE", "LAST RESULT", "DEVICES", "ENDPOINT/DIGEST/REFUSAL"];
    listing("discovery handlers", &header, handlers, handler_row)
}

fn handler_row(Handler { object, status }: &Handler) -> Vec<String> {
    let text = |text: Option<&String>| text.map_or_else(|| "-".to_owned(), |text| plain(text));
    let (kind, place) = match status.kind {
        // Whole, so that it can be copied into spec.component.digest.
        HandlerKind::Component => ("component", status.digest.as_ref().map(|digest| format!("sha256:{digest}"))),
        HandlerKind::Remote => ("remote", status.endpoint.clone()),
    };
    vec![
        text(status.handler.as_ref()),
        text(object.as_ref()),
        kind.to_owned(),
        format!("{:?}", status.state),
        status.since.as_ref().map_or_else(|| "-".to_owned(), |since| since.0.to_string()),
        shorten(&text(status.last_result.as_ref()), RESULT),
        status.devices.to_string(),
        text(refusal(status).or(place).as_ref()),
    ]
}

/// Returns why the object was refused, if it was; the previous version of the handler may be running.
fn refusal(status: &DiscoveryHandlerStatus) -> Option<String> {
    let accepted = condition::find(&status.conditions, "Accepted").filter(|accepted| accepted.status == "False")?;
    Some(format!("{}: {}", accepted.reason, accepted.message))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test] // rule 107, rule 110
    fn unreadable_usage_is_in_the_table() {
        let used = |usage: serde_json::Value| {
            let object = json!({"apiVersion": "akri.sh/v0", "kind": "Instance", "metadata": {"name": "cam-1"},
                "spec": {"configurationName": "cam", "cdiName": "akri.sh/cam=1", "capacity": 3, "deviceUsage": usage}});
            instance_row(&serde_json::from_value(object).unwrap())[4].clone()
        };
        assert_eq!(used(json!({"cam-1-0": "node-a", "cam-1-1": "R:1b4e:node-a", "cam-1-2": ""})), "2/3");
        assert_eq!(used(json!({"cam-1-0": "node-a", "cam-1-1": "C:0"})), "2/3 (1 unreadable)");
    }

    #[test] // rule 34
    fn incomplete_discovery_is_in_the_table() {
        let condition = |kind: &str, status: &str, reason: &str, message: &str| {
            json!({"type": kind, "status": status, "reason": reason, "message": message,
                "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        let row = |conditions: serde_json::Value| {
            let object = json!({"apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": "cam"},
                "spec": {"discoveryHandler": {"name": "h"}}, "status": {"instances": 1, "conditions": conditions}});
            configuration_row(&serde_json::from_value(object).unwrap())[2..].join(" ")
        };
        let ready = condition("Ready", "True", "Discovered", "1 device has an Instance");
        let incomplete = condition("DiscoveryComplete", "False", "Unauthorized", "cam1: refuses its password");
        let failed = condition("Ready", "False", "NoHandler", "no handler");
        assert_eq!(row(json!([])), "1 - -  ");
        assert_eq!(row(json!([ready])), "1 True - Discovered 1 device has an Instance");
        assert_eq!(row(json!([ready, incomplete])), "1 True False Unauthorized cam1: refuses its password");
        assert_eq!(row(json!([failed, incomplete])), "1 False False NoHandler no handler");
    }
}
