//! Events of devices that are no warnings: the changes that users get to know, each from the one that makes it.

use crate::instance::Online;
use crate::names::Key;
use crate::reclaim::{ContainerName, SlotUse};
use crate::text::clean;

/// Longest text of a device, in bytes: it chooses its id.
const MAX_ID: usize = 256;

/// The reasons of Events that nobody has to do anything about; all others are warnings.
const NORMAL: [&str; 6] =
    ["DeviceFound", "DeviceOffline", "DeviceOnline", "DeviceRemoved", "SlotClaimed", "SlotReleased"];

/// Returns whether an Event of a reason is no warning.
pub fn is_normal(reason: &str) -> bool {
    NORMAL.contains(&reason)
}

/// A change of a device, as an Event of its Instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceEvent {
    /// A CamelCase word.
    pub reason: &'static str,
    /// A sentence.
    pub message: String,
    /// The pod that it is about, too.
    pub pod: Option<Key>,
}

impl DeviceEvent {
    fn new(reason: &'static str, message: String) -> Self {
        Self { reason, message, pod: None }
    }

    /// A node has made the Instance of a device.
    pub fn found(node: &str, device: &str) -> Self {
        Self::new("DeviceFound", format!("node {node} has found '{}'", clean(device, MAX_ID)))
    }

    /// A node has deleted the Instance.
    pub fn removed(node: &str) -> Self {
        Self::new("DeviceRemoved", format!("no node sees the device any more; node {node} was the last one"))
    }

    /// Returns the Event of a change of the condition `Online`.
    pub fn of_online(before: Online, now: Online) -> Option<Self> {
        match (before, now) {
            (Online::True | Online::Unknown, Online::False) => {
                Some(Self::new("DeviceOffline", "no node sees the device".to_owned()))
            }
            (Online::False, Online::True) => Some(Self::new("DeviceOnline", "the device is back".to_owned())),
            _ => None,
        }
    }

    /// Returns an Event for each container that uses slots of which it was not known.
    pub fn claimed(node: &str, slots: &[SlotUse]) -> Vec<Self> {
        let known: Vec<SlotUse> = slots.iter().filter(|(_, container)| container.is_some()).cloned().collect();
        by_container("SlotClaimed", &known, &|slots, user| format!("{slots} of node {node}: used by {user}"))
    }

    /// Returns an Event for each container that used slots, and one for slots without a known user.
    pub fn released(node: &str, slots: &[SlotUse]) -> Vec<Self> {
        by_container("SlotReleased", slots, &|slots, user| format!("{slots} of node {node}: {user} has ended"))
    }
}

fn by_container(
    reason: &'static str,
    slots: &[SlotUse],
    message: &dyn Fn(String, String) -> String,
) -> Vec<DeviceEvent> {
    let mut users: Vec<_> = slots.iter().map(|(_, user)| user).collect();
    users.sort_unstable();
    users.dedup();
    let event = |user: &Option<ContainerName>| {
        let slots = slots.iter().filter(|(_, of)| of == user).map(|(slot, _)| slot.to_string());
        let slots = format!("slot {}", slots.collect::<Vec<_>>().join(", "));
        let pod = user.as_ref().map(|user| Key::new(&*user.namespace, &*user.pod));
        let user = user.as_ref().map_or("its container".to_owned(), ContainerName::to_string);
        DeviceEvent { reason, message: message(slots, user), pod }
    };
    users.into_iter().map(event).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_transitions_of_online_are_events() {
        let reason = |before, now| DeviceEvent::of_online(before, now).map(|event| event.reason);
        let (on, off, unknown) = (Online::True, Online::False, Online::Unknown);
        for (before, now, expected) in [
            (on, on, None),
            (off, off, None),
            (on, off, Some("DeviceOffline")),
            (unknown, off, Some("DeviceOffline")),
            (off, on, Some("DeviceOnline")),
            (on, unknown, None),
            (unknown, on, None),
            (off, unknown, None),
        ] {
            assert_eq!(reason(before, now), expected, "{before:?} {now:?}");
            assert!(expected.is_none_or(is_normal));
        }
    }

    #[test]
    fn id_of_a_device_is_one_short_visible_line() {
        let message = DeviceEvent::found("x", &format!("\u{1b}[31mcam\n\u{202e}{}", "y".repeat(5000))).message;
        assert!(message.starts_with("node x has found ' [31mcam  yyy") && message.len() < 300, "{message}");
    }

    #[test]
    fn each_container_has_one_event_for_its_slots() {
        let container =
            |pod: &str| Some(ContainerName { namespace: "n".into(), pod: pod.into(), container: "main".into() });
        let slots = [(0, container("b")), (1, container("a")), (2, container("b")), (3, None)];
        let shown = |events: Vec<DeviceEvent>| -> Vec<(String, Option<Key>)> {
            events.into_iter().map(|event| (event.message, event.pod)).collect()
        };
        let pod = |name: &str| Some(Key::new("n", name));
        let claimed = DeviceEvent::claimed("x", &slots);
        assert!(claimed.iter().all(|event| event.reason == "SlotClaimed" && is_normal(event.reason)));
        assert_eq!(
            shown(claimed),
            [
                ("slot 1 of node x: used by container main of pod n/a".to_owned(), pod("a")),
                ("slot 0, 2 of node x: used by container main of pod n/b".to_owned(), pod("b")),
            ]
        );
        assert!(is_normal(DeviceEvent::found("x", "d").reason) && is_normal(DeviceEvent::removed("x").reason));
        let released = shown(DeviceEvent::released("x", &slots));
        assert_eq!(released.len(), 3);
        assert_eq!(released[0], ("slot 3 of node x: its container has ended".to_owned(), None));
    }
}
