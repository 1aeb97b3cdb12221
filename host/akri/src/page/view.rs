//! The content of the page, made of what is observed: no secrets, and of each device its name and one property.
//!
//! Devices and messages may hold any text: it is bounded here, invisible characters are escaped, and the script sets it as text.

use std::collections::BTreeMap;

use akri_api::condition::{Condition, find};
use akri_api::{Configuration, Instance};
use akri_cli::device::distinctive_property;
use akri_cli::output::plain;
use akri_model::chain::{End, Facts, InstanceFacts, Link, end};
use akri_model::text::cut_with_dots;
use kube::ResourceExt as _;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::observed::{Handler, Observed, device_state};
use crate::why::of_refused;

/// Devices that are sent at once.
const PAGE: usize = 100;

/// Problems, Configurations and handlers that are sent; of others the number.
const LISTED: usize = 100;

/// Names that a problem is listed with.
const SUBJECTS: usize = 5;

/// Users of a device that are listed.
const USERS: usize = 8;

/// Numbers of devices that a handler is shown with.
const HISTORY: usize = 60;

/// Bytes of a sentence, as `akri why` has them, and of anything else.
const SENTENCE: usize = 1024;
const TEXT: usize = 256;

/// The part of the devices that a reader wants to see.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Query {
    find: String,
    page: usize,
}

impl Query {
    /// Parses the query of a URL; what is not known is left out.
    pub(super) fn parse(text: &str) -> Self {
        let mut query = Self::default();
        for (name, value) in form_urlencoded::parse(text.as_bytes()) {
            match &*name {
                "find" => query.find = cut_with_dots(&value.to_lowercase(), TEXT),
                "page" => query.page = value.parse().unwrap_or_default(),
                _ => {}
            }
        }
        query
    }
}

/// All that one observation comes to.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    /// The kinds of objects that the user may not list.
    hidden: Vec<String>,
    problems: Vec<Problem>,
    devices: Vec<Device>,
    configurations: Vec<Row>,
    handlers: Vec<HandlerRow>,
}

/// A link that does not hold, in the words of `akri why`.
#[derive(Debug, Serialize)]
struct Problem {
    subjects: Vec<String>,
    /// Subjects that are not listed.
    more: usize,
    link: &'static str,
    why: String,
    remedy: String,
}

#[derive(Debug, Serialize)]
struct Device {
    resource: String,
    configuration: String,
    device: String,
    state: &'static str,
    nodes: String,
    used: usize,
    capacity: usize,
    #[serde(serialize_with = "first_users")]
    users: Vec<String>,
    /// The end of its chain, if that is the device itself: other ends are among the problems, once for all devices.
    note: Option<String>,
}

#[derive(Debug, Serialize)]
struct Row {
    name: String,
    instances: i64,
    ready: String,
    reason: String,
    message: String,
}

#[derive(Debug, Serialize)]
struct HandlerRow {
    name: String,
    object: String,
    state: String,
    devices: i64,
    /// The last numbers of devices that differ from the one before, the oldest first.
    history: Vec<i64>,
    result: String,
}

impl Snapshot {
    /// Returns the content made of an observation; numbers of devices follow those of the snapshot before. Only one chain is in memory
    /// at a time: each of ten thousand devices may repeat what a thousand nodes say of its Configuration.
    pub(super) fn of(observed: &Observed, before: &Self) -> Self {
        let mut problems = Problems::default();
        of_objects(observed).for_each(|facts| problems.add(&facts.subject, end(&facts).as_ref()));
        let devices = observed.instances.iter().map(|instance| {
            let facts = observed.of_instance(instance);
            let end = end(&facts);
            problems.add(&facts.subject, end.as_ref());
            device(instance, &facts.instance.unwrap_or_default(), end)
        });
        let devices = devices.collect();
        let pods = observed.pods.iter().filter(|pod| pod.waits.is_some()).flat_map(|pod| observed.of_pod(pod));
        pods.for_each(|facts| problems.add(&facts.subject, end(&facts).as_ref()));
        Self {
            hidden: observed.hidden.clone(),
            problems: problems.0.into_values().collect(),
            devices,
            configurations: observed.configurations.iter().map(configuration).collect(),
            handlers: observed.handlers.iter().map(|one| handler(one, &before.handlers)).collect(),
        }
    }

    /// Returns the content of a page that has nothing to show but why.
    pub(super) fn failed(why: &str) -> Self {
        let problem = |end| Problem { subjects: vec!["this page".to_owned()], ..Problem::new(end) };
        let remedy = "name the directory of a local agent with --state-dir, or a cluster with KUBECONFIG".to_owned();
        Self { problems: vec![problem(End { link: Link::Agent, why: why.to_owned(), remedy })], ..Self::default() }
    }

    /// Returns the part that a reader wants, as JSON. Of what is listed there is the number of all, listed or not.
    pub(super) fn view(&self, query: &Query) -> String {
        let matching: Vec<&Device> = self.devices.iter().filter(|device| device.has(&query.find)).collect();
        let pages = matching.len().div_ceil(PAGE).max(1);
        let page = query.page.min(pages - 1);
        let rows: Vec<&Device> = matching.iter().skip(page * PAGE).take(PAGE).copied().collect();
        let view = json!({
            "hidden": self.hidden,
            "problems": first(&self.problems),
            "devices": {"rows": rows, "count": matching.len()},
            "page": page,
            "pages": pages,
            "total": self.devices.len(),
            "configurations": first(&self.configurations),
            "handlers": first(&self.handlers),
        });
        view.to_string()
    }
}

fn first(all: &[impl Serialize]) -> Value {
    json!({"rows": all.iter().take(LISTED).collect::<Vec<_>>(), "count": all.len()})
}

impl Device {
    fn has(&self, part: &str) -> bool {
        let texts = [&self.resource, &self.configuration, &self.device, &self.nodes].into_iter().map(String::as_str);
        let texts = texts.chain(self.users.iter().map(String::as_str)).chain([self.state]);
        part.is_empty() || texts.into_iter().any(|text| text.to_lowercase().contains(part))
    }
}

impl Problem {
    fn new(end: End) -> Self {
        let End { link, why, remedy } = end;
        Self { subjects: Vec::new(), more: 0, link: link.name(), why: sentence(&why), remedy: sentence(&remedy) }
    }

    fn add_subject(&mut self, subject: &str) {
        let subject = text(subject);
        match self.subjects.len() < SUBJECTS {
            _ if subject.is_empty() || self.subjects.contains(&subject) => {}
            true => self.subjects.push(subject),
            false => self.more += 1,
        }
    }
}

/// Problems in the order of their links, equal ones once.
#[derive(Default)]
struct Problems(BTreeMap<(Link, String, String), Problem>);

impl Problems {
    /// Adds the end of a chain, if it has one. A device in full use is no problem; its row says who uses it.
    fn add(&mut self, subject: &str, end: Option<&End>) {
        let Some(end) = end.filter(|end| end.link != Link::Slots) else { return };
        let key = (end.link, end.why.clone(), end.remedy.clone());
        self.0.entry(key).or_insert_with(|| Problem::new(end.clone())).add_subject(subject);
    }
}

/// Returns the chains of manifests, handlers and Configurations.
fn of_objects(observed: &Observed) -> impl Iterator<Item = Facts> {
    let manifests = observed.manifests.iter().map(|error| Facts { manifest: Some(error.clone()), ..Facts::default() });
    let handlers = observed.handlers.iter().filter_map(of_refused);
    manifests.chain(handlers).chain(observed.configurations.iter().map(|one| observed.of_configuration_alone(one)))
}

fn device(instance: &Instance, known: &InstanceFacts, end: Option<End>) -> Device {
    Device {
        resource: text(&known.resource),
        configuration: text(&format!(
            "{}/{}",
            instance.namespace().unwrap_or_default(),
            instance.spec.configuration_name
        )),
        device: text(&distinctive_property(&instance.spec.broker_properties)),
        state: device_state(known.online),
        nodes: text(&instance.spec.nodes.join(", ")),
        used: known.users.len(),
        capacity: known.capacity,
        users: known.users.iter().map(|user| text(user)).collect(),
        note: end.filter(|end| end.link == Link::Instance).map(|end| sentence(&end.why)),
    }
}

fn configuration(object: &Configuration) -> Row {
    let status = object.status.clone().unwrap_or_default();
    let ready = find(&status.conditions, "Ready");
    let of_ready = |field: fn(&Condition) -> &str| ready.map(field).unwrap_or_default();
    Row {
        name: text(&format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any())),
        instances: status.instances,
        ready: ready.map_or_else(|| "Unknown".to_owned(), |ready| text(&ready.status)),
        reason: text(of_ready(|ready| &ready.reason)),
        message: sentence(of_ready(|ready| &ready.message)),
    }
}

fn handler(Handler { object, status }: &Handler, before: &[HandlerRow]) -> HandlerRow {
    let (name, object) = (text(status.handler.as_deref().unwrap_or("-")), text(object.as_deref().unwrap_or("-")));
    let last = before.iter().find(|row| row.name == name && row.object == object);
    HandlerRow {
        history: history(last.map_or(&[], |row| &row.history), status.devices),
        name,
        object,
        state: format!("{:?}", status.state),
        devices: status.devices,
        result: sentence(status.last_result.as_deref().unwrap_or("-")),
    }
}

fn history(before: &[i64], now: i64) -> Vec<i64> {
    let new = Some(now).filter(|now| before.last() != Some(now));
    let all: Vec<i64> = before.iter().copied().chain(new).collect();
    all.iter().copied().skip(all.len().saturating_sub(HISTORY)).collect()
}

fn first_users<S: Serializer>(users: &[String], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(users.iter().take(USERS))
}

fn text(text: &str) -> String {
    cut_with_dots(&plain(text), TEXT)
}

fn sentence(text: &str) -> String {
    cut_with_dots(&plain(text), SENTENCE)
}

#[cfg(test)]
mod tests {
    use akri_api::DiscoveryHandlerStatus;

    use super::*;
    use crate::observed::Pod;

    fn instance(name: &str, property: &str, usage: &Value) -> Instance {
        serde_json::from_value(json!({
            "apiVersion": "akri.sh/v0", "kind": "Instance", "metadata": {"name": name, "namespace": "default"},
            "spec": {"configurationName": "cam", "cdiName": "akri.sh/cam=1", "capacity": 1, "nodes": ["edge-1"],
                "brokerProperties": {"UDEV_DEVNODE": property, "PASSWORD": "hunter2"}, "deviceUsage": usage},
            "status": {"conditions": [{"type": "Online", "status": "True", "reason": "Seen", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
        }))
        .unwrap()
    }

    fn cameras(status: &str, reason: &str) -> Configuration {
        serde_json::from_value(json!({
            "apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": "cam", "namespace": "default"},
            "spec": {"discoveryHandler": {"name": "udev"}},
            "status": {"instances": 1, "conditions": [{"type": "Ready", "status": status, "reason": reason, "message": "of it",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
        }))
        .unwrap()
    }

    fn view(observed: &Observed, query: &str) -> Value {
        serde_json::from_str(&Snapshot::of(observed, &Snapshot::default()).view(&Query::parse(query))).unwrap()
    }

    #[test] // threat 71
    fn text_of_devices_is_bounded_and_visible() {
        let hostile = format!("<script>alert(1)</script>\u{1b}[2J\u{202e}{}", "x".repeat(4096));
        let instances = vec![instance("cam-1", &hostile, &json!({}))];
        let text = view(&Observed { instances, ..Observed::default() }, "").to_string();
        assert!(text.contains("<script>") && text.contains("\\\\u{1b}") && text.contains("\\\\u{202e}"), "{text}");
        assert!(text.len() < 2048 && !text.contains("hunter2"), "{text}");
    }

    #[test]
    fn many_devices_come_in_pages_and_are_found() {
        let one = |number| instance(&format!("cam-{number}"), &format!("/dev/video{number}"), &json!({}));
        let observed = Observed { instances: (0..10_000).map(one).collect(), ..Observed::default() };
        let snapshot = Snapshot::of(&observed, &Snapshot::default());
        let view = |query: &str| -> Value { serde_json::from_str(&snapshot.view(&Query::parse(query))).unwrap() };
        let first = view("");
        assert_eq!((&first["pages"], &first["total"]), (&json!(100), &json!(10_000)));
        assert_eq!(first["devices"]["rows"].as_array().unwrap().len(), PAGE);
        assert_eq!(view("page=99")["devices"]["rows"][99]["resource"], "akri.sh/cam-9999");
        assert_eq!(view("page=1000000")["page"], 99);
        let found = view("find=VIDEO123&page=x&other=1");
        assert_eq!((&found["devices"]["count"], &found["page"]), (&json!(11), &json!(0)));
        assert_eq!(view("find=nothing")["pages"], 1);
    }

    #[test] // rule 139
    fn pods_are_problems_while_they_wait_and_come_once() {
        let pod = |name: &str, waits: Option<&str>| Pod {
            name: format!("shop/{name}"),
            node: None,
            requests: ["cam".to_owned()].into(),
            waits: waits.map(str::to_owned),
            since: None,
            is_broker: false,
        };
        let offline = |name: &str| {
            let mut instance = instance(name, "/dev/video0", &json!({}));
            instance.status.as_mut().unwrap().conditions[0].status = "False".to_owned();
            instance
        };
        let observed = Observed {
            configurations: vec![cameras("True", "Discovered")],
            instances: vec![offline("cam-1"), offline("cam-2")],
            pods: vec![pod("counter", Some("it is Pending: Insufficient akri.sh/cam")), pod("door", None)],
            ..Observed::default()
        };
        let seen = view(&observed, "");
        let problems = seen["problems"]["rows"].as_array().unwrap();
        let count = |name: &str, problem: &Value| problem["subjects"].to_string().matches(name).count();
        assert!(problems.iter().any(|problem| count("shop/counter", problem) == 1), "{seen}");
        assert!(
            problems.iter().all(|problem| count("shop/counter", problem) < 2 && count("door", problem) == 0),
            "{seen}"
        );
    }

    #[test] // threat 71
    fn device_with_many_users_lists_a_few_and_is_found_by_each() {
        let usage: BTreeMap<String, String> =
            (0..1000).map(|slot| (format!("cam-1-{slot}"), format!("edge-{slot}"))).collect();
        let instances = vec![instance("cam-1", "/dev/video0", &json!(usage))];
        let seen = view(&Observed { instances, ..Observed::default() }, "find=edge-987");
        let row = &seen["devices"]["rows"][0];
        assert_eq!((row["users"].as_array().unwrap().len(), &row["used"]), (USERS, &json!(1000)));
    }

    #[test] // rule 139
    fn handlers_have_the_last_numbers_of_their_devices() {
        let observed = |devices| {
            let status = DiscoveryHandlerStatus { handler: Some("udev".to_owned()), devices, ..Default::default() };
            Observed { handlers: vec![Handler { object: None, status }], ..Observed::default() }
        };
        let after = |before: Snapshot, devices| Snapshot::of(&observed(devices), &before);
        let few = [3, 3, 1, 1, 3].into_iter().fold(Snapshot::default(), after);
        assert_eq!(few.handlers[0].history, [3, 1, 3]);
        let many = (0..1000).fold(few, after);
        assert_eq!(many.handlers[0].history, (940..1000).collect::<Vec<i64>>());
    }

    #[test] // rule 139
    fn problems_are_the_ends_of_chains_and_equal_ones_come_once() {
        let used = json!({"cam-1-0": "edge-1"});
        let mut observed = Observed {
            configurations: vec![cameras("False", "NoHandler")],
            instances: vec![instance("cam-1", "/dev/video0", &used), instance("cam-2", "/dev/video1", &json!({}))],
            ..Observed::default()
        };
        let seen = view(&observed, "");
        let problems = seen["problems"]["rows"].as_array().unwrap();
        assert_eq!(problems.len(), 1, "{seen}");
        assert_eq!((&problems[0]["link"], &problems[0]["why"]), (&json!("handler"), &json!("NoHandler: of it")));
        assert_eq!(problems[0]["subjects"], json!(["default/cam", "akri.sh/cam-1", "akri.sh/cam-2"]));
        observed.configurations = vec![cameras("True", "Discovered")];
        let seen = view(&observed, "");
        assert_eq!(seen["problems"]["count"], 0, "{seen}");
        let row = &seen["devices"]["rows"][0];
        assert_eq!((&row["note"], &row["users"]), (&Value::Null, &json!(["node 'edge-1'"])));
    }
}
