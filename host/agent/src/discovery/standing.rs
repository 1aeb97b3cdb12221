//! How discovery handlers are doing: who uses them, told by those who do.

use std::collections::BTreeMap;

use akri_model::discovery::RoundError;
use akri_model::names::Key;
use tokio::sync::watch;

/// The result of a good round.
const DISCOVERED: &str = "Discovered";

/// How all handlers are doing. Clones are the same.
#[derive(Debug, Clone)]
pub struct Standings(watch::Sender<BTreeMap<String, Users>>);

/// The Configurations that use a handler, and how it is doing with each.
pub type Users = BTreeMap<Key, Standing>;

/// How a handler is doing with one Configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Standing {
    /// The last result: `Discovered`, or why it failed. None before the first.
    pub result: Option<&'static str>,
    /// Devices in the last good one.
    pub devices: usize,
}

/// A Configuration's use of a handler. It ends when this is dropped.
#[derive(Debug)]
pub struct User {
    standings: Standings,
    handler: String,
    configuration: Key,
}

impl Default for Standings {
    fn default() -> Self {
        Self(watch::Sender::new(BTreeMap::new()))
    }
}

impl Standings {
    /// A Configuration begins to use a handler.
    pub fn begin(&self, handler: &str, configuration: &Key) -> User {
        let user = User { standings: self.clone(), handler: handler.to_owned(), configuration: configuration.clone() };
        user.change(|_| {});
        user
    }

    /// What has been told, and every change.
    pub fn told(&self) -> watch::Receiver<BTreeMap<String, Users>> {
        self.0.subscribe()
    }
}

impl User {
    /// Which handler is used.
    pub fn handler(&self) -> &str {
        &self.handler
    }

    /// It saw that many devices.
    pub fn found(&self, devices: usize) {
        self.change(|standing| *standing = Standing { result: Some(DISCOVERED), devices });
    }

    /// It failed.
    pub fn failed(&self, error: &RoundError) {
        self.change(|standing| standing.result = Some(error.reason()));
    }

    fn change(&self, change: impl FnOnce(&mut Standing)) {
        self.standings.0.send_if_modified(|all| {
            let before = all.get(&self.handler).and_then(|users| users.get(&self.configuration)).cloned();
            let standing = all.entry(self.handler.clone()).or_default().entry(self.configuration.clone()).or_default();
            change(standing);
            before.as_ref() != Some(standing)
        });
    }
}

impl Drop for User {
    fn drop(&mut self) {
        self.standings.0.send_modify(|all| {
            if let Some(users) = all.get_mut(&self.handler) {
                users.remove(&self.configuration);
            }
            all.retain(|_, users| !users.is_empty());
        });
    }
}

/// The result of all users together: that of the first who suffers, by name, with its name.
pub fn result(users: &Users) -> Option<String> {
    let results = users.iter().filter_map(|(key, standing)| Some((key, standing.result?)));
    let trouble = results.clone().find(|(_, result)| *result != DISCOVERED);
    let trouble = trouble.map(|(key, result)| format!("{result} ({key})"));
    trouble.or_else(|| results.map(|(_, result)| result.to_owned()).next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_come_tell_and_go() {
        let standings = Standings::default();
        let mut told = standings.told();
        let key = |name: &str| Key::new("default", name);
        let (a, b) = (standings.begin("udev", &key("a")), standings.begin("udev", &key("b")));
        assert_eq!(result(&told.borrow_and_update()["udev"]), None);
        a.found(3);
        b.found(1);
        assert_eq!(result(&told.borrow_and_update()["udev"]), Some("Discovered".to_owned()));
        b.found(1);
        assert!(!told.has_changed().unwrap(), "nothing new");
        b.failed(&RoundError::Trapped(String::new()));
        let users = told.borrow_and_update()["udev"].clone();
        assert_eq!(result(&users), Some("Trapped (default/b)".to_owned()));
        assert_eq!(users.values().map(|standing| standing.devices).sum::<usize>(), 4, "what was seen stays");
        drop(b);
        assert_eq!(result(&told.borrow_and_update()["udev"]), Some("Discovered".to_owned()));
        drop(a);
        assert!(told.borrow_and_update().is_empty());
    }
}
