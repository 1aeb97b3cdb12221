//! The holders of extended resource names. These names know no namespaces, and `akri.sh/cam-8120fe` can be that of a
//! Configuration and that of an Instance: the oldest Configuration has it, then that of the lowest UID (rule 29, rule 48).

use std::collections::{BTreeMap, BTreeSet};

use akri_model::configuration::Configuration;
use akri_model::names::{Key, is_hash, resource_name};
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

    /// Returns the Configuration that has a name, or whose Instances may have it by their hashes, if it is another one.
    pub fn holder(&self, name: &str, configuration: &Configuration) -> Option<Key> {
        let claims = self.0.borrow();
        let holder =
            |name: &str| claims.get(name)?.first().map(|(.., key)| key).filter(|key| **key != configuration.key);
        let of_hash = || holder(name.rsplit_once('-').filter(|(_, end)| is_hash(end))?.0);
        holder(name).or_else(of_hash).cloned()
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

    #[test] // rule 125
    fn names_with_hashes_belong_to_the_configuration_before_them() {
        let names = ResourceNames::default();
        let (camera, door) = (configuration("cam", 1, "b"), configuration("door", 2, "c"));
        names.claim("cam", &camera).unwrap();
        assert_eq!(names.holder("cam-8120fe", &door), Some(camera.key.clone()), "also before there is that Instance");
        for free in ["cam-front", "door-8120fe", "cam-8120fe-1", "8120fe"] {
            assert_eq!(names.holder(free, &door), None, "{free}");
        }
        assert_eq!(names.holder("cam-8120fe", &camera), None);
    }
}
