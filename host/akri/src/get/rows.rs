//! The rows of each kind.

use std::collections::{BTreeMap, BTreeSet};

use akri_api::condition::{self, Condition};
use akri_api::instance::command_to_free;
use akri_api::{Configuration, HandlerKind, Instance, instance_to_model};
use akri_cli::device::distinctive_property;
use akri_cli::output::plain;
use akri_model::names::{Key, Usage, resource_name};
use akri_model::text::shorten;
use jiff::Timestamp;
use kube::ResourceExt;
use serde::Serialize;
use serde_json::{Value, json};

use crate::observed::{Handler, Observed, Pod, Slot, device_state};

/// Maximum length of a result in a table, in characters.
const RESULT: usize = 60;

/// Maximum length of a message, likewise; `-o yaml` and `akri why` have all of it.
const MESSAGE: usize = 100;

/// A kind of rows.
pub(super) struct Kind {
    /// The name of one, for messages, and of several.
    pub(super) names: [&'static str; 2],
    /// The resource, as kubectl prints names.
    pub(super) resource: &'static str,
    pub(super) header: &'static [&'static str],
    /// The columns that `-o wide` adds.
    pub(super) wide: &'static [&'static str],
    pub(super) rows: fn(&Observed) -> Vec<Row>,
}

/// A row.
#[derive(Debug, Clone, Default)]
pub(super) struct Row {
    pub(super) namespace: Option<String>,
    /// The names that select it; the first is its own.
    pub(super) names: Vec<String>,
    pub(super) cells: Vec<String>,
    pub(super) wide: Vec<String>,
    /// The time of its age.
    pub(super) created: Option<Timestamp>,
    /// The object, as JSON and YAML have it.
    pub(super) value: Value,
}

/// The column of objects that have an age.
pub(super) const AGE: &str = "AGE";

/// Devices by node.
pub(super) const DEVICES: Kind = Kind {
    names: ["device", "devices"],
    resource: "instance.akri.sh",
    header: &["NODE", "NAMESPACE", "RESOURCE", "DEVICE", "STATE", "SLOTS", "PODS"],
    wide: &["CONFIGURATION", AGE],
    rows: devices,
};

/// Slots of Instances.
pub(super) const SLOTS: Kind = Kind {
    names: ["slot", "slots"],
    resource: "slot",
    header: &["NAMESPACE", "SLOT", "NODE", "USER", "SINCE"],
    wide: &["CONFIGURATION", "USAGE"],
    rows: slots,
};

/// The pods of nodes that hold devices.
pub(super) const USERS: Kind = Kind {
    names: ["pod that holds a device", "pods that hold devices"],
    resource: "pod",
    header: &["NODE", "POD", "BROKER", "SLOTS"],
    wide: &[],
    rows: users,
};

pub(super) const INSTANCES: Kind = Kind {
    names: ["Instance", "Instances"],
    resource: "instance.akri.sh",
    header: &["NAMESPACE", "RESOURCE", "CONFIGURATION", "DEVICE", "USED", "ONLINE", "NODES"],
    wide: &[AGE],
    rows: instances,
};

pub(super) const CONFIGURATIONS: Kind = Kind {
    names: ["Configuration", "Configurations"],
    resource: "configuration.akri.sh",
    header: &["NAMESPACE", "NAME", "INSTANCES", "READY", "COMPLETE", "REASON", "MESSAGE"],
    wide: &["HANDLER", AGE],
    rows: configurations,
};

pub(super) const HANDLERS: Kind = Kind {
    names: ["discovery handler", "discovery handlers"],
    resource: "discoveryhandler.akri.sh",
    header: &["NAME", "OBJECT", "KIND", "STATE", "SINCE", "LAST RESULT", "DEVICES", "ENDPOINT/DIGEST/REFUSAL"],
    wide: &[],
    rows: handlers,
};

fn devices(observed: &Observed) -> Vec<Row> {
    let nodes = observed.instances.iter().flat_map(|object| object.spec.nodes.iter().map(move |node| (object, node)));
    let mut rows: Vec<Row> = nodes.map(|(object, node)| device(observed, object, node)).collect();
    rows.sort_by(|one, other| one.cells.cmp(&other.cells));
    rows
}

/// Returns the row of a device on one of its nodes, with the pods of that node.
fn device(observed: &Observed, object: &Instance, node: &str) -> Row {
    let instance = instance_to_model(object);
    let state = device_state(instance.online);
    let used: Vec<Slot<'_>> = observed.slots(object).filter(|slot| !slot.usage.is_free()).collect();
    let here = used.iter().filter(|slot| slot.usage.node() == Some(node));
    let pods: BTreeSet<&str> = here.flat_map(|slot| slot.pods.iter().copied()).collect();
    let (resource, device) = (resource_name(&instance.key.name), distinctive_property(&instance.properties));
    let value = json!({
        "node": node, "namespace": instance.key.namespace, "resource": resource, "configuration": instance.configuration,
        "device": device, "state": state, "capacity": instance.capacity, "used": used.len(), "pods": pods,
    });
    let slots = format!("{}/{}", used.len(), instance.capacity);
    let pods = or_none(&pods.into_iter().collect::<Vec<_>>().join(","));
    let cells = [node.to_owned(), instance.key.namespace, resource, device, state.to_owned(), slots, pods];
    let names = vec![instance.key.name, instance.configuration, node.to_owned()];
    let wide = vec![object.spec.configuration_name.clone()];
    Row { names, cells: cells.into(), wide, value, ..of_instance(object) }
}

/// Returns what all rows about an Instance have.
fn of_instance(object: &Instance) -> Row {
    Row {
        namespace: object.namespace(),
        names: vec![object.name_any(), object.spec.configuration_name.clone()],
        created: object.creation_timestamp().map(|time| time.0),
        ..Row::default()
    }
}

fn slots(observed: &Observed) -> Vec<Row> {
    let row = |object: &Instance, slot: Slot<'_>| {
        let Row { namespace, mut names, .. } = of_instance(object);
        names.insert(0, slot.name.to_owned());
        let node = slot.usage.node().unwrap_or_default();
        let is_of = |pod: &&Pod| slot.pods.as_slice() == [pod.name.as_str()];
        let since = observed.pods.iter().find(is_of).and_then(|pod| pod.since).map(|since| since.to_string());
        let value = json!({
            "namespace": namespace, "slot": slot.name, "instance": object.name_any(), "node": node,
            "usage": slot.usage.to_string(), "pods": slot.pods, "since": since,
        });
        let user = user(&slot, &Key::new(namespace.clone().unwrap_or_default(), object.name_any()));
        let cells = [namespace.clone().unwrap_or_default(), slot.name.to_owned(), or_none(node), user];
        let cells = cells.into_iter().chain([or_none(&since.unwrap_or_default())]).collect();
        let wide = vec![object.spec.configuration_name.clone(), or_none(&plain(&slot.usage.to_string()))];
        Row { namespace, names, cells, wide, value, ..Row::default() }
    };
    let of_instance = |object| observed.slots(object).map(move |slot| row(object, slot));
    observed.instances.iter().flat_map(of_instance).collect()
}

/// Returns the user of a slot in a table; for one whose usage names no node the command that frees it.
fn user(slot: &Slot<'_>, instance: &Key) -> String {
    match (&slot.usage, slot.pods.as_slice()) {
        (Usage::Unreadable(text), _) => {
            format!("unreadable '{}'; once no container uses it: {}", plain(text), command_to_free(instance, slot.name))
        }
        (Usage::ResourceClaim { claim, .. }, []) => format!("ResourceClaim {claim}"),
        (usage, []) if !usage.is_free() => "unknown".to_owned(),
        (_, pods) => or_none(&pods.join(" or ")),
    }
}

/// Returns the pods that hold slots, or may, and those that have requested devices and run.
fn users(observed: &Observed) -> Vec<Row> {
    let mut held: BTreeMap<[String; 2], BTreeSet<&str>> = BTreeMap::new();
    for slot in observed.instances.iter().flat_map(|object| observed.slots(object)) {
        let Some(node) = slot.usage.node() else { continue };
        let unknown = slot.pods.is_empty().then_some("unknown");
        for pod in slot.pods.iter().copied().chain(unknown) {
            held.entry([node.to_owned(), pod.to_owned()]).or_default().insert(slot.name);
        }
    }
    let running = observed.pods.iter().filter(|pod| pod.since.is_some());
    for (pod, node) in running.filter_map(|pod| Some((pod, pod.node.clone()?))) {
        held.entry([node, pod.name.clone()]).or_default();
    }
    let is_broker = |name: &str| observed.pods.iter().any(|pod| pod.name == name && pod.is_broker);
    let row = |([node, pod], slots): ([String; 2], BTreeSet<&str>)| {
        let broker = is_broker(&pod);
        let value = json!({"node": node, "pod": pod, "broker": broker, "slots": slots});
        let slots = or_none(&slots.into_iter().collect::<Vec<_>>().join(","));
        let cells = vec![node.clone(), pod.clone(), if broker { "yes" } else { "no" }.to_owned(), slots];
        let namespace = pod.split_once('/').map(|(namespace, _)| namespace.to_owned());
        Row { namespace, names: vec![pod, node], cells, value, ..Row::default() }
    };
    held.into_iter().map(row).collect()
}

fn instances(observed: &Observed) -> Vec<Row> {
    // Without a kubelet nothing counts who uses devices: what CDI hands out is not seen.
    let is_counted = !observed.kubelets.contains_key("");
    let row = |object: &Instance| {
        let mut cells = instance_cells(object);
        let is_used = object.spec.device_usage.values().any(|usage| !usage.is_empty());
        cells.iter_mut().skip(4).take(usize::from(!is_counted && !is_used)).for_each(|used| *used = "-".to_owned());
        Row { cells, value: value(object), ..of_instance(object) }
    };
    observed.instances.iter().map(row).collect()
}

fn instance_cells(instance: &Instance) -> Vec<String> {
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

fn configurations(observed: &Observed) -> Vec<Row> {
    let row = |object: &Configuration| Row {
        namespace: object.namespace(),
        names: vec![object.name_any()],
        cells: configuration_cells(object),
        wide: vec![object.spec.discovery_handler.name.clone()],
        created: object.creation_timestamp().map(|time| time.0),
        value: value(object),
    };
    observed.configurations.iter().map(row).collect()
}

/// Returns the cells of a Configuration. Reason and message are of the first condition that does not hold.
fn configuration_cells(configuration: &Configuration) -> Vec<String> {
    let status = configuration.status.clone().unwrap_or_default();
    let [ready, complete] = ["Ready", "DiscoveryComplete"].map(|kind| condition::find(&status.conditions, kind));
    let is_false = |condition: &&Condition| condition.status == "False";
    let telling = ready.filter(is_false).or(complete.filter(is_false)).or(ready);
    let truth = |condition: Option<&Condition>| condition.map_or("-", |one| &one.status).to_owned();
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

fn handlers(observed: &Observed) -> Vec<Row> {
    let row = |handler: &Handler| Row {
        names: handler.object.iter().chain(&handler.status.handler).cloned().collect(),
        cells: handler_cells(handler),
        value: value(handler),
        ..Row::default()
    };
    observed.handlers.iter().map(row).collect()
}

fn handler_cells(handler: &Handler) -> Vec<String> {
    let Handler { object, status } = handler;
    let text = |text: Option<&String>| or_none(&text.map(|text| plain(text)).unwrap_or_default());
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
        text(handler.refusal().or(place).as_ref()),
    ]
}

/// Returns an object as kubectl shows it: without who manages its fields.
fn value(object: &impl Serialize) -> Value {
    let mut value = json!(object);
    value.pointer_mut("/metadata").and_then(Value::as_object_mut).map(|metadata| metadata.remove("managedFields"));
    value
}

fn or_none(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(usage: Value) -> Instance {
        let object = json!({"apiVersion": "akri.sh/v0", "kind": "Instance", "metadata": {"name": "cam-1", "namespace": "a"},
            "spec": {"configurationName": "cam", "cdiName": "akri.sh/cam=1", "capacity": 3, "nodes": ["n1", "n2"],
                "brokerProperties": {"UDEV_DEVNODE": "/dev/video0"}, "deviceUsage": usage}});
        serde_json::from_value(object).unwrap()
    }

    fn pod(name: &str, requests: &str, is_broker: bool) -> Pod {
        let since = Some(Timestamp::UNIX_EPOCH);
        let requests = [requests.to_owned()].into();
        Pod { name: name.to_owned(), node: Some("n1".to_owned()), requests, waits: None, since, is_broker }
    }

    fn observed(usage: Value) -> Observed {
        let pods = vec![pod("a/one", "cam", false), pod("a/two", "cam-1", true)];
        Observed { instances: vec![instance(usage)], pods, ..Observed::default() }
    }

    fn lines(kind: &Kind, observed: &Observed) -> Vec<String> {
        (kind.rows)(observed).iter().map(|row| row.cells.join(" ")).collect()
    }

    #[test] // rule 107, rule 110
    fn unreadable_usage_is_in_the_table() {
        let used = |usage: Value| instance_cells(&instance(usage))[4].clone();
        assert_eq!(used(json!({"cam-1-0": "node-a", "cam-1-1": "R:1b4e:node-a", "cam-1-2": ""})), "2/3");
        assert_eq!(used(json!({"cam-1-0": "node-a", "cam-1-1": "C:0"})), "2/3 (1 unreadable)");
    }

    #[test] // rule 107, rule 110
    fn slots_have_their_users() {
        let usage =
            json!({"cam-1-0": "C:0:n1", "cam-1-1": "R:1b4e:n2", "cam-1-2": "C:0", "cam-1-3": "n1", "cam-1-4": ""});
        let free = command_to_free(&Key::new("a", "cam-1"), "cam-1-2");
        assert_eq!(
            lines(&SLOTS, &observed(usage)),
            [
                "a cam-1-0 n1 a/one 1970-01-01T00:00:00Z",
                "a cam-1-1 n2 ResourceClaim 1b4e -",
                &format!("a cam-1-2 - unreadable 'C:0'; once no container uses it: {free} -"),
                "a cam-1-3 n1 a/two 1970-01-01T00:00:00Z",
                "a cam-1-4 - - -",
            ]
        );
    }

    #[test]
    fn devices_are_listed_by_node() {
        let expected =
            ["n1 a akri.sh/cam-1 /dev/video0 Unknown 2/3 a/one", "n2 a akri.sh/cam-1 /dev/video0 Unknown 2/3 -"];
        assert_eq!(lines(&DEVICES, &observed(json!({"cam-1-0": "C:0:n1", "cam-1-1": "n2"}))), expected);
    }

    #[test]
    fn pods_that_would_be_interrupted_are_listed() {
        let usage = json!({"cam-1-0": "C:0:n1", "cam-1-1": "n2", "cam-1-2": ""});
        let expected = ["n1 a/one no cam-1-0", "n1 a/two yes -", "n2 unknown no cam-1-1"];
        assert_eq!(lines(&USERS, &observed(usage)), expected);
    }

    #[test] // rule 34
    fn incomplete_discovery_is_in_the_table() {
        let condition = |kind: &str, status: &str, reason: &str, message: &str| {
            json!({"type": kind, "status": status, "reason": reason, "message": message,
                "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        let row = |conditions: Value| {
            let object = json!({"apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": "cam"},
                "spec": {"discoveryHandler": {"name": "h"}}, "status": {"instances": 1, "conditions": conditions}});
            configuration_cells(&serde_json::from_value(object).unwrap())[2..].join(" ")
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
