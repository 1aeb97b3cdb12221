//! One round of a component handler for a Configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use akri_api::HandlerRules;
use akri_api::document::Document;
use akri_model::configuration::Configuration;
use akri_model::datagram::DatagramFilter;
use akri_model::device::DeviceSet;
use akri_model::discovery::{RoundError, Trigger};
use akri_model::grant::Grants;
use akri_model::property::Resolved;
use akri_node::admission::admit;
use akri_node::sysfs::is_granted;
use akri_sandbox::{Cache, Call, Component};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tracing::debug;

use crate::registry::Handler;

/// Shortest interval between rounds, whatever a handler or its details request.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// Maximum number of filters for the datagrams of one group.
const MAX_FILTERS: usize = 16;

/// Paths that are checked without a thread for it, which takes some milliseconds.
const INLINE: usize = 256;

/// The triggers of the round after a successful one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RoundTriggers {
    /// Time since the last round.
    pub(crate) interval: Duration,
    /// Subsystems whose uevents start a round.
    pub(crate) subsystems: BTreeSet<String>,
    /// Multicast groups whose datagrams start a round.
    pub(crate) groups: BTreeMap<SocketAddr, GroupSubscription>,
}

/// A subscription to the datagrams of a group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct GroupSubscription {
    /// Globs for the interfaces that receive the datagrams.
    pub(crate) interfaces: Vec<String>,
    /// Filters of which one must match a datagram.
    pub(crate) filters: Vec<DatagramFilter>,
}

/// Calls a component to validate details. Returns its triggers. Details that are no YAML reach it without their JSON form, so
/// that it can't explain their syntax error, which is added to its problems.
///
/// # Errors
/// The problems of invalid details, or the reason why the component gave no answer.
pub async fn validate_details(component: &Component, call: Call) -> Result<Vec<Trigger>, RoundError> {
    let details = call.details.clone();
    let mut validated = component.validate(call).await;
    if let Err(RoundError::InvalidDetails(problems)) = &mut validated
        && let Some(Err(syntax)) = parsed(move || Document::parse_details(&details)).await
    {
        problems.push(syntax.into());
    }
    validated
}

/// Runs one round of a Configuration with valid details.
///
/// # Errors
/// Those of the component, or that its devices could not be checked in time.
pub async fn round(handler: &Handler, configuration: &Arc<Configuration>, call: Call) -> Result<DeviceSet, RoundError> {
    let (subject, rates) = (call.subject.clone(), call.rates.clone());
    let set = handler.component.discover(call).await?;
    debug!(configuration = %subject, devices = set.devices.len(), "round done");
    let (grants, limits) = (handler.rules.grants.clone(), handler.rules.limits.clone());
    let (most, longest) = (limits.round, limits.round.saturating_mul(2)); // a check that goes on tells itself that it takes too long
    let late = |_| {
        let message = format!("the paths of its devices were not checked within {longest:?}: a file system may hang");
        RoundError::Unavailable(message)
    };
    let permit = timeout(longest, Arc::clone(&handler.admission).acquire_owned()).await.map_err(late)?;
    let began = Instant::now();
    let is_over = move || began.elapsed() > most;
    let is_quick = is_quick(&set) && configuration.paths.is_empty();
    let configuration = Arc::clone(configuration);
    let admit = move || {
        let _permit = permit; // also of a thread that hangs
        admit(set, &configuration, &grants, &limits, is_over)
    };
    let admitted = if is_quick {
        admit() // a thread for it would take longer, and stay for 10 s
    } else {
        let admitted = timeout(longest, tokio::task::spawn_blocking(admit)).await.map_err(late)?;
        admitted.unwrap_or_else(|error| Err(RoundError::Unavailable(error.to_string())))
    };
    rates.add_processor_time(began.elapsed());
    admitted
}

/// Returns whether the paths of devices are few, and below /dev, where none waits for a disk or a network.
fn is_quick(set: &DeviceSet) -> bool {
    let specs = || set.devices.iter().flat_map(|device| &device.device_specs);
    set.devices.iter().all(|device| device.mounts.is_empty())
        && specs().take(INLINE + 1).count() <= INLINE
        && specs().all(|spec| spec.host_path.starts_with("/dev/"))
}

/// Returns the arguments of a component call for a Configuration. Its details as JSON are those of [`details_json`].
pub fn call(
    configuration: &Configuration,
    details_json: Option<String>,
    rules: &HandlerRules,
    properties: Resolved,
    cache: Cache,
) -> Call {
    Call {
        subject: configuration.key.to_string(),
        details: configuration.details.clone(),
        details_json,
        properties,
        grants: rules.grants.clone(),
        limits: rules.limits.clone(),
        cache,
        ..Call::default()
    }
}

/// Converts details to JSON, so that handlers need no YAML parser. Empty details are an empty object; details that are
/// neither YAML nor JSON are `None`.
pub async fn details_json(details: &str) -> Option<String> {
    let details = details.to_owned();
    parsed(move || Document::json(&details)).await?
}

/// Parses details on a blocking thread, one text at a time: anyone who can create Configurations can write them.
async fn parsed<T: Send + 'static>(parse: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    static ADMISSION: Semaphore = Semaphore::const_new(1);
    let _permit = ADMISSION.acquire().await.ok()?;
    tokio::task::spawn_blocking(parse).await.ok()
}

impl RoundTriggers {
    /// Selects the requested triggers that are granted: a handler without access to something is not notified of its
    /// changes. The interval of the DiscoveryHandler object wins over that of the details, and that over the
    /// component's `own`.
    pub(crate) fn new(rules: &HandlerRules, own: Duration, triggers: Vec<Trigger>) -> Self {
        let mut interval = None;
        let mut subsystems = BTreeSet::new();
        let mut groups: BTreeMap<SocketAddr, GroupSubscription> = BTreeMap::new();
        for trigger in triggers {
            match trigger {
                Trigger::Interval(wanted) => interval = interval.or(Some(wanted)),
                Trigger::Uevent(subsystem) => subsystems.extend(granted_subsystems(&rules.grants, subsystem)),
                Trigger::Multicast { group, filter } => {
                    let interfaces = rules.grants.interfaces(group);
                    if !interfaces.is_empty() {
                        groups
                            .entry(group)
                            .or_insert(GroupSubscription { interfaces, filters: Vec::new() })
                            .add_filter(filter);
                    }
                }
            }
        }
        let interval = rules.interval.or(interval).unwrap_or(own).max(MIN_INTERVAL);
        Self { interval, subsystems, groups }
    }
}

/// Returns the reason why a trigger starts no round, if it is not granted: the handler does not see what it stands for either.
pub fn ungranted(grants: &Grants, trigger: &Trigger) -> Option<String> {
    let (trigger, grant, wanted) = match trigger {
        Trigger::Uevent(subsystem) if granted_subsystems(grants, subsystem.clone()).is_empty() => {
            (format!("devices of subsystem '{subsystem}'"), "udev", format!("{{subsystems: ['{subsystem}']}}"))
        }
        Trigger::Multicast { group, .. } if grants.interfaces(*group).is_empty() => {
            let wanted = format!("{{group: '{}', port: {}}}", group.ip(), group.port());
            (format!("datagrams to {group}"), "multicast", wanted)
        }
        _ => return None,
    };
    let field = grants.field(grant);
    Some(format!("{trigger}, a trigger of the handler, are not covered by {field}; {wanted} would allow it"))
}

/// Returns the granted subsystems of a requested one, or of all (`*`). If a glob is granted, events of all subsystems
/// start a round, which still sees granted devices only.
fn granted_subsystems(grants: &Grants, subsystem: String) -> Vec<String> {
    let granted = &grants.udev_subsystems;
    let is_glob = |name: &String| name.contains(['*', '?', '[', '|', '\\']);
    match subsystem.as_str() {
        "*" if granted.iter().any(is_glob) => vec![subsystem],
        "*" => granted.clone(),
        name if is_granted(&grants.udev_subsystems, Some(name)) => vec![subsystem],
        _ => Vec::new(),
    }
}

impl GroupSubscription {
    /// Adds a filter; beyond the limit every datagram matches.
    fn add_filter(&mut self, filter: DatagramFilter) {
        if self.filters.len() >= MAX_FILTERS {
            self.filters = vec![DatagramFilter::Any];
        } else if !self.filters.contains(&filter) {
            self.filters.push(filter);
        }
    }
}

#[cfg(test)]
mod tests {
    use akri_api::DiscoveryHandler;
    use akri_model::device::{Device, DeviceSpec, Mount};

    use super::*;

    #[test] // rule 134
    fn few_paths_below_dev_are_checked_without_a_thread() {
        let device = |paths: usize, path: &str| {
            let [host_path, container_path] = [path.to_owned(), path.to_owned()];
            let spec = DeviceSpec { container_path, host_path, permissions: "rw".to_owned() };
            Device { device_specs: vec![spec; paths], ..Device::default() }
        };
        let set = |devices| DeviceSet { devices, ..DeviceSet::default() };
        assert!(is_quick(&set(vec![device(1, "/dev/null"); INLINE])));
        assert!(!is_quick(&set(vec![device(1, "/dev/null"); INLINE + 1])));
        assert!(!is_quick(&set(vec![device(64, "/dev/null"); 5])), "paths count, not devices");
        assert!(!is_quick(&set(vec![device(1, "/mnt/nfs")])));
        let mount = Mount { container_path: "/dev/x".to_owned(), host_path: "/dev/x".to_owned(), read_only: true };
        assert!(!is_quick(&set(vec![Device { mounts: vec![mount], ..Device::default() }])));
    }

    #[tokio::test]
    async fn details_reach_the_handler_as_json() {
        for (details, json) in [
            ("descriptions:\n- a\n", Some(r#"{"descriptions":["a"]}"#)),
            (r#"{"a": 1}"#, Some(r#"{"a":1}"#)),
            ("", Some("{}")),
            ("a: [", None),
            ("a: 1\n---\nb: 2\n", None),
        ] {
            assert_eq!(details_json(details).await.as_deref(), json, "{details}");
        }
    }

    fn triggers_of(spec: serde_json::Value, triggers: &[(&str, &str)]) -> RoundTriggers {
        let object = serde_json::json!({"metadata": {"name": "h"}, "spec": spec});
        let rules = HandlerRules::from(&serde_json::from_value::<DiscoveryHandler>(object).unwrap());
        let triggers = triggers.iter().filter_map(|(kind, value)| Trigger::parse(kind, value));
        RoundTriggers::new(&rules, Duration::from_secs(30), triggers.collect())
    }

    #[test] // rule 92
    fn ungranted_events_start_no_round() {
        let triggers = [
            ("uevent", "tty"),
            ("uevent", "video4linux"),
            ("multicast", "239.255.255.250:3702 Hello"),
            ("multicast", "239.255.255.250:3702 Bye"),
            ("multicast", "239.255.255.250:3703"),
            ("multicast", "224.0.0.251:3702"),
        ];
        let why = |kind: &str, value: &str| ungranted(&Grants::default(), &Trigger::parse(kind, value).unwrap());
        let begin = "devices of subsystem 'tty', a trigger of the handler, are not covered by grants.udev of the DiscoveryHandler; \
                     {subsystems: ['tty']} would allow it";
        assert_eq!(why("uevent", "tty").as_deref(), Some(begin));
        let group = why("multicast", "[ff02::fb]:5353 x").unwrap();
        assert!(group.starts_with("datagrams to [ff02::fb]:5353, "), "{group}");
        assert!(group.ends_with("; {group: 'ff02::fb', port: 5353} would allow it"), "{group}");
        assert_eq!(why("interval-ms", "1"), None);
        let nothing = triggers_of(serde_json::json!({"component": {"file": "h.wasm"}}), &triggers);
        assert!(nothing.subsystems.is_empty() && nothing.groups.is_empty(), "{nothing:?}");
        let grants = serde_json::json!({
            "udev": {"subsystems": ["tty"]},
            "multicast": [{"group": "239.255.255.250", "port": 3702, "interfaces": ["eth*"]}],
        });
        let some = triggers_of(serde_json::json!({"component": {"file": "h.wasm"}, "grants": grants}), &triggers);
        assert_eq!(some.subsystems, ["tty".to_owned()].into());
        let filters = ["Hello", "Bye"].map(|text| DatagramFilter::Contains(text.to_owned())).to_vec();
        let wanted = GroupSubscription { interfaces: vec!["eth*".to_owned()], filters };
        assert_eq!(some.groups, [("239.255.255.250:3702".parse().unwrap(), wanted)].into());
    }

    #[test] // rule 92
    fn unfiltered_subscription_gets_all_granted_events() {
        for (granted, asked, expected) in [
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
            let expected: BTreeSet<String> = expected.iter().map(ToString::to_string).collect();
            assert_eq!(triggers_of(spec, &[("uevent", asked)]).subsystems, expected, "{granted:?} {asked}");
        }
    }

    #[test] // rule 92
    fn interval_is_of_the_object_then_details_then_component() {
        let details = [("interval-ms", "5000"), ("interval-ms", "6000")];
        for (object, triggers, expected) in
            [(None, &[][..], 30_000), (None, &details, 5000), (Some("2s"), &details, 2000), (Some("1ms"), &[], 100)]
        {
            let spec = serde_json::json!({"component": {"file": "h.wasm"}, "interval": object});
            assert_eq!(triggers_of(spec, triggers).interval, Duration::from_millis(expected), "{object:?}");
        }
    }

    #[test]
    fn subscriptions_are_bounded() {
        let mut wanted = GroupSubscription::default();
        let containing = |text: &str| DatagramFilter::Contains(text.to_owned());
        for text in ["Hello", "Bye", "Hello"] {
            wanted.add_filter(containing(text));
        }
        assert_eq!(wanted.filters, ["Hello", "Bye"].map(containing));
        (0..100).for_each(|number| wanted.add_filter(containing(&number.to_string())));
        assert!(wanted.filters.len() <= MAX_FILTERS && wanted.filters[0] == DatagramFilter::Any, "{wanted:?}");
    }
}
