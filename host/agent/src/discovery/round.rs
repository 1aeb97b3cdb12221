//! One round of a component handler for a Configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use akri_api::HandlerRules;
use akri_api::document::Document;
use akri_model::configuration::Configuration;
use akri_model::device::DeviceSet;
use akri_model::discovery::{Problem, RoundError, Trigger};
use akri_model::grant::Grants;
use akri_model::property::Resolved;
use akri_sandbox::{Cache, Call, covers_subsystem};
use tracing::debug;

use super::admission::admit;
use super::registry::Handler;

/// Shortest pause between rounds, whatever a handler or its details say.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// Texts that datagrams to one group may be looked through for.
const MAX_TEXTS: usize = 16;

/// What starts the round after a good one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wake {
    /// That much time.
    pub(super) interval: Duration,
    /// A uevent of one of these subsystems.
    pub(super) subsystems: BTreeSet<String>,
    /// A datagram to one of these groups.
    pub(super) groups: BTreeMap<SocketAddr, Wanted>,
}

/// Which datagrams to a group count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Those that come in here: globs over the names of interfaces.
    pub(super) interfaces: Vec<String>,
    /// Those that contain one of these.
    pub(super) texts: Vec<String>,
}

/// Checks the details and runs one round; also says what is to start the next.
pub(super) async fn round(handler: &Handler, call: Call) -> Result<(DeviceSet, Wake), RoundError> {
    let subject = call.subject.clone();
    let triggers = handler.component.validate(call.clone()).await.map_err(|error| explained(error, &call))?;
    let set = handler.component.discover(call).await?;
    debug!(configuration = %subject, devices = set.devices.len(), "round done");
    let (grants, limits) = (handler.rules.grants.clone(), handler.rules.limits.clone());
    let admitted = tokio::task::spawn_blocking(move || admit(set, &grants, &limits)).await;
    let set = admitted.map_err(|error| RoundError::Unavailable(error.to_string()))?;
    Ok((set, Wake::new(&handler.rules, handler.interval, triggers)))
}

/// A handler that wants YAML is not told what is wrong with it, since it gets none.
fn explained(error: RoundError, call: &Call) -> RoundError {
    match (error, Document::parse_all(&call.details)) {
        (RoundError::InvalidDetails(mut problems), Err(syntax)) => {
            let line = syntax.line.map(|line| format!(" in line {line} of the details")).unwrap_or_default();
            let message = format!("as YAML there is an error{line}: {}", syntax.message);
            problems.push(Problem { path: String::new(), reason: "Syntax".to_owned(), message });
            RoundError::InvalidDetails(problems)
        }
        (error, _) => error,
    }
}

/// What a component is called with for a Configuration.
pub fn call(configuration: &Configuration, rules: &HandlerRules, properties: Resolved, cache: Cache) -> Call {
    Call {
        subject: configuration.key.to_string(),
        details: configuration.details.clone(),
        details_json: as_json(&configuration.details),
        properties,
        grants: rules.grants.clone(),
        limits: rules.limits.clone(),
        cache,
        log: None,
    }
}

/// Details as JSON, so that handlers need no YAML parser. Empty details are an empty object.
fn as_json(details: &str) -> Option<String> {
    let documents = Document::parse_all(details).ok()?;
    match documents.as_slice() {
        [] => Some("{}".to_owned()),
        [document] => Some(document.value.to_string()),
        _ => None,
    }
}

impl Wake {
    /// What a handler wants to be woken by, as far as it was granted: who may not see something is not told that something
    /// happens to it. The object's interval wins over the details', and these over the component's `own`.
    fn new(rules: &HandlerRules, own: Duration, triggers: Vec<Trigger>) -> Self {
        let mut interval = None;
        let mut subsystems = BTreeSet::new();
        let mut groups: BTreeMap<SocketAddr, Wanted> = BTreeMap::new();
        for trigger in triggers {
            match trigger {
                Trigger::Interval(wanted) => interval = interval.or(Some(wanted)),
                Trigger::Uevent(subsystem) => subsystems.extend(heard(&rules.grants, subsystem)),
                Trigger::Multicast { group, containing } => {
                    let interfaces = interfaces(&rules.grants, group);
                    if !interfaces.is_empty() {
                        groups.entry(group).or_insert(Wanted { interfaces, texts: Vec::new() }).listen_for(containing);
                    }
                }
            }
        }
        let interval = rules.interval.or(interval).unwrap_or(own).max(MIN_INTERVAL);
        Self { interval, subsystems, groups }
    }
}

/// Which events are heard by who asks for those of a subsystem, or of any (`*`). Where a glob is granted, it is any that
/// can be told; such a round sees only what is granted, all the same.
fn heard(grants: &Grants, subsystem: String) -> Vec<String> {
    let granted = &grants.udev_subsystems;
    let is_glob = |name: &String| name.contains(['*', '?', '[', '|', '\\']);
    match subsystem.as_str() {
        "*" if granted.iter().any(is_glob) => vec![subsystem],
        "*" => granted.clone(),
        name if covers_subsystem(grants, name) => vec![subsystem],
        _ => Vec::new(),
    }
}

/// On which interfaces a group may be heard; none if it may not.
fn interfaces(grants: &Grants, group: SocketAddr) -> Vec<String> {
    let granted = grants.multicast.iter().filter(|to| (to.address, to.port) == (group.ip(), group.port()));
    granted.flat_map(|granted| granted.interfaces.clone()).collect()
}

impl Wanted {
    /// With more texts than are looked for, any datagram counts.
    fn listen_for(&mut self, text: String) {
        if self.texts.len() >= MAX_TEXTS {
            self.texts = vec![String::new()];
        } else if !self.texts.contains(&text) {
            self.texts.push(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use akri_api::DiscoveryHandler;

    use super::*;

    #[test]
    fn details_reach_the_handler_as_json() {
        for (details, json) in [
            ("descriptions:\n- a\n", Some(r#"{"descriptions":["a"]}"#)),
            (r#"{"a": 1}"#, Some(r#"{"a":1}"#)),
            ("", Some("{}")),
            ("a: [", None),
            ("a: 1\n---\nb: 2\n", None),
        ] {
            assert_eq!(as_json(details).as_deref(), json, "{details}");
        }
    }

    fn wake(spec: serde_json::Value, triggers: &[(&str, &str)]) -> Wake {
        let object = serde_json::json!({"metadata": {"name": "h"}, "spec": spec});
        let rules = HandlerRules::from(&serde_json::from_value::<DiscoveryHandler>(object).unwrap());
        let triggers = triggers.iter().filter_map(|(kind, value)| Trigger::parse(kind, value));
        Wake::new(&rules, Duration::from_secs(30), triggers.collect())
    }

    #[test]
    fn who_may_not_see_something_is_not_woken_by_it() {
        let triggers = [
            ("uevent", "tty"),
            ("uevent", "video4linux"),
            ("multicast", "239.255.255.250:3702 Hello"),
            ("multicast", "239.255.255.250:3702 Bye"),
            ("multicast", "239.255.255.250:3703"),
            ("multicast", "224.0.0.251:3702"),
        ];
        let nothing = wake(serde_json::json!({"component": {"file": "h.wasm"}}), &triggers);
        assert!(nothing.subsystems.is_empty() && nothing.groups.is_empty(), "{nothing:?}");
        let grants = serde_json::json!({
            "udev": {"subsystems": ["tty"]},
            "multicast": [{"group": "239.255.255.250", "port": 3702, "interfaces": ["eth*"]}],
        });
        let some = wake(serde_json::json!({"component": {"file": "h.wasm"}, "grants": grants}), &triggers);
        assert_eq!(some.subsystems, ["tty".to_owned()].into());
        let texts = vec!["Hello".to_owned(), "Bye".to_owned()];
        let wanted = Wanted { interfaces: vec!["eth*".to_owned()], texts };
        assert_eq!(some.groups, [("239.255.255.250:3702".parse().unwrap(), wanted)].into());
    }

    #[test]
    fn who_asks_for_any_event_hears_those_of_what_is_granted() {
        for (granted, asked, heard) in [
            (&["tty", "usb"][..], "*", &["tty", "usb"][..]),
            (&["*"], "*", &["*"]),
            (&["usb*"], "*", &["*"]),
            (&["usb*"], "usbmisc", &["usbmisc"]),
            (&["usb*"], "tty", &[]),
            (&[], "*", &[]),
        ] {
            let spec = serde_json::json!({
                "component": {"file": "h.wasm"}, "grants": {"udev": {"subsystems": granted}}
            });
            let heard: BTreeSet<String> = heard.iter().map(ToString::to_string).collect();
            assert_eq!(wake(spec, &[("uevent", asked)]).subsystems, heard, "{granted:?} {asked}");
        }
    }

    #[test]
    fn the_interval_is_the_objects_else_the_details_else_the_components() {
        let details = [("interval-ms", "5000"), ("interval-ms", "6000")];
        for (object, triggers, expected) in
            [(None, &[][..], 30_000), (None, &details, 5000), (Some("2s"), &details, 2000), (Some("1ms"), &[], 100)]
        {
            let spec = serde_json::json!({"component": {"file": "h.wasm"}, "interval": object});
            assert_eq!(wake(spec, triggers).interval, Duration::from_millis(expected), "{object:?}");
        }
    }

    #[test]
    fn what_is_listened_for_is_bounded() {
        let mut wanted = Wanted::default();
        for text in ["Hello", "Bye", "Hello"] {
            wanted.listen_for(text.to_owned());
        }
        assert_eq!(wanted.texts, ["Hello", "Bye"]);
        (0..100).for_each(|number| wanted.listen_for(number.to_string()));
        assert!(wanted.texts.len() <= MAX_TEXTS && wanted.texts[0].is_empty(), "{wanted:?}");
    }
}
