//! The holders of extended resource names. These names know no namespaces, and `akri.sh/cam-8120fe` can be that of a
//! Configuration and that of an Instance: the oldest Configuration has it, then that of the lowest UID (rule 29, rule 48).

use std::collections::{BTreeMap, BTreeSet};

use akri_model::configuration::Configuration;
use akri_model::names::{Key, resource_name};
use tokio::sync::watch;
use tracing::error;

/// All resource names of this node, with those that want each. Who has a name of several is a change.
#[derive(Debug, Default)]
pub struct ResourceNames(watch::Sender<Claims>);

/// Claims on names.
pub type Claims = BTreeMap<String, BTreeSet<Rank>>;

/// The order of claims on a name: the lowest one gets it.
pub type Rank = (i64, String, Key);

impl ResourceNames {
    /// Claims a name for a Configuration.
    ///
    /// # Errors
    /// With the Configuration that has it, if that is another one.
    pub fn claim(&self, name: &str, configuration: &Configuration) -> Result<(), Key> {
        let rank = rank(configuration);
        let (mut is_new, mut holder) = (false, None);
        self.0.send_if_modified(|claims| {
            let wanted = claims.entry(name.to_owned()).or_default();
            let before = wanted.first().cloned();
            is_new = wanted.insert(rank.clone());
            let first = wanted.first();
            holder = first.filter(|first| **first != rank).map(|(.., key)| key.clone());
            before.is_some() && before.as_ref() != first
        });
        let Some(holder) = holder else { return Ok(()) };
        if is_new {
            let resource = resource_name(name);
            error!(configuration = %configuration.key, resource, %holder, "an older Configuration has this resource");
        }
        Err(holder)
    }

    /// Returns the Configuration that has a name, if it is another one.
    pub fn holder(&self, name: &str, configuration: &Configuration) -> Option<Key> {
        let claims = self.0.borrow();
        let (.., key) = claims.get(name)?.first()?;
        (*key != configuration.key).then(|| key.clone())
    }

    /// Withdraws a Configuration's claim on a name.
    pub fn release(&self, name: &str, configuration: &Configuration) {
        let rank = rank(configuration);
        self.0.send_if_modified(|claims| {
            let Some(wanted) = claims.get_mut(name) else { return false };
            let had_it = wanted.first() == Some(&rank);
            wanted.remove(&rank);
            if wanted.is_empty() {
                claims.remove(name);
                return false;
            }
            had_it
        });
    }

    /// Notifies of changes of who has a name that several want.
    pub fn changes(&self) -> watch::Receiver<Claims> {
        self.0.subscribe()
    }
}

fn rank(configuration: &Configuration) -> Rank {
    (configuration.created, configuration.uid.clone(), configuration.key.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configuration(name: &str, created: i64, uid: &str) -> Configuration {
        Configuration { key: Key::new("default", name), uid: uid.into(), created, ..Configuration::default() }
    }

    #[test] // rule 48
    fn oldest_configuration_has_a_name_until_it_goes() {
        let names = ResourceNames::default();
        let mut changes = names.changes();
        let (older, younger) = (configuration("cam", 1, "b"), configuration("cam-8120fe", 1, "c"));
        assert_eq!(names.claim("cam-8120fe", &younger), Ok(()));
        assert!(!changes.has_changed().unwrap());
        assert_eq!(names.claim("cam-8120fe", &older), Ok(()), "created in the same second: the lower UID");
        assert!(changes.has_changed().unwrap(), "the younger one has to close its plugin");
        changes.mark_unchanged();
        assert_eq!(names.claim("cam-8120fe", &younger), Err(older.key.clone()));
        assert!(!changes.has_changed().unwrap());
        names.release("cam-8120fe", &older);
        assert!(changes.has_changed().unwrap());
        assert_eq!(names.claim("cam-8120fe", &younger), Ok(()));
    }
}
