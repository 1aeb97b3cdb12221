//! Activity of component handlers: which Configurations use them, and with what result.

use std::collections::BTreeMap;

use akri_model::discovery::{QUARANTINED, RoundError};
use akri_model::names::Key;
use tokio::sync::watch;

/// The result of a successful round.
const DISCOVERED: &str = "Discovered";

/// The activity of all handlers, by DiscoveryHandler object. Clones share it.
pub type HandlerActivity = watch::Sender<BTreeMap<String, HandlerUses>>;

/// The Configurations that use a handler, each with its last result.
pub type HandlerUses = BTreeMap<Key, UseResult>;

/// The last result of a handler for one Configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UseResult {
    /// `Discovered` or the reason of the failure; `None` before the first round.
    pub result: Option<&'static str>,
    /// Number of devices in the last successful round.
    pub devices: usize,
}

/// The use of a handler by a Configuration. It ends when this is dropped.
#[derive(Debug)]
pub struct HandlerUse {
    activity: HandlerActivity,
    pub(crate) handler: String,
    configuration: Key,
}

impl HandlerUse {
    /// Records that a Configuration uses a handler.
    pub fn begin(activity: &HandlerActivity, handler: &str, configuration: &Key) -> Self {
        let (activity, handler) = (activity.clone(), handler.to_owned());
        let user = Self { activity, handler, configuration: configuration.clone() };
        user.change(|_| {});
        user
    }

    /// Records a successful round.
    pub fn found(&self, devices: usize) {
        self.change(|result| *result = UseResult { result: Some(DISCOVERED), devices });
    }

    /// Records a failed round.
    pub fn failed(&self, error: &RoundError) {
        self.change(|result| result.result = Some(error.reason()));
    }

    fn change(&self, change: impl FnOnce(&mut UseResult)) {
        self.activity.send_if_modified(|all| {
            let before = all.get(&self.handler).and_then(|users| users.get(&self.configuration)).cloned();
            let result = all.entry(self.handler.clone()).or_default().entry(self.configuration.clone()).or_default();
            change(result);
            before.as_ref() != Some(result)
        });
    }
}

impl Drop for HandlerUse {
    fn drop(&mut self) {
        self.activity.send_modify(|all| {
            if let Some(users) = all.get_mut(&self.handler) {
                users.remove(&self.configuration);
            }
            all.retain(|_, users| !users.is_empty());
        });
    }
}

/// Summarizes the results of all uses: the first failure in the order of names, with the Configuration's name, or
/// success.
pub fn overall_result(users: &HandlerUses) -> Option<String> {
    let results = users.iter().filter_map(|(key, result)| Some((key, result.result?)));
    let failure = results.clone().find(|(_, result)| *result != DISCOVERED);
    let failure = failure.map(|(key, result)| format!("{result} ({key})"));
    failure.or_else(|| results.map(|(_, result)| result.to_owned()).next())
}

/// Returns the number of Configurations for which a handler is quarantined.
pub fn quarantined(activity: &BTreeMap<String, HandlerUses>) -> usize {
    activity.values().flat_map(BTreeMap::values).filter(|last| last.result == Some(QUARANTINED)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activity_follows_its_configurations() {
        let activity = HandlerActivity::default();
        let mut observed = activity.subscribe();
        let key = |name: &str| Key::new("default", name);
        let (a, b) = (HandlerUse::begin(&activity, "udev", &key("a")), HandlerUse::begin(&activity, "udev", &key("b")));
        assert_eq!(overall_result(&observed.borrow_and_update()["udev"]), None);
        a.found(3);
        b.found(1);
        assert_eq!(overall_result(&observed.borrow_and_update()["udev"]), Some("Discovered".to_owned()));
        b.found(1);
        assert!(!observed.has_changed().unwrap(), "nothing new");
        let last = Box::new(RoundError::Trapped(String::new()));
        a.failed(&RoundError::Quarantined { faults: 5, last, pause: std::time::Duration::ZERO });
        assert_eq!(quarantined(&observed.borrow_and_update()), 1);
        a.found(3);
        b.failed(&RoundError::Trapped(String::new()));
        let users = observed.borrow_and_update()["udev"].clone();
        assert_eq!(overall_result(&users), Some("Trapped (default/b)".to_owned()));
        assert_eq!(users.values().map(|result| result.devices).sum::<usize>(), 4, "what was seen stays");
        drop(b);
        assert_eq!(overall_result(&observed.borrow_and_update()["udev"]), Some("Discovered".to_owned()));
        drop(a);
        assert!(observed.borrow_and_update().is_empty());
    }
}
