//! The DiscoveryHandler object that serves each handler name (rule 132).

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// The progress of an object's component.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadState {
    /// It is being loaded for the first time.
    Pending,
    /// It is loaded and can run.
    Loaded,
    /// It was refused, and no earlier version runs.
    Refused,
}

/// The claim of an object to a handler name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameClaim {
    /// The handler name.
    pub name: String,
    /// The progress of the object's component.
    pub state: LoadState,
}

/// The service of a handler name that objects claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameService {
    /// The component of this object.
    Served(String),
    /// Nothing until more is loaded.
    Pending,
    /// Nothing: the object that owns the name, or each that claims it, is refused.
    Refused,
}

/// Returns whether streams may be opened to remote handlers of a name: if objects claim it, then only beside the component that
/// serves it, once that has reported or failed. It says what `shared` is, and its view of a device counts.
pub fn remote_may_join(service: Option<&NameService>, component_is_awaited: bool) -> bool {
    match service {
        None => true,
        Some(NameService::Served(_)) => !component_is_awaited,
        Some(NameService::Pending | NameService::Refused) => false,
    }
}

/// The component that an object had last: names of Instances depend on it (rule 91).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastComponent {
    /// The UID of the object.
    pub uid: String,
    /// The handler name.
    pub name: String,
    /// Set if its devices are shared.
    pub shared: bool,
}

/// The object that owns each handler name: the one that served it last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameOwners(pub BTreeMap<String, String>);

impl NameOwners {
    /// Decides what serves each claimed name. An owner keeps its name for as long as it claims it. A name without an owner goes to
    /// the loaded object of the same name, or else to the first one, once all that claim it are loaded or refused. Unless the
    /// claims are complete, an owner that is not among them may still exist, and its name is not free.
    pub fn assign(&mut self, claims: &BTreeMap<String, NameClaim>, complete: bool) -> BTreeMap<String, NameService> {
        self.0.retain(|name, owner| claims.get(owner).map_or(!complete, |claim| claim.name == *name));
        let claimed = claims.values().map(|claim| claim.name.clone());
        let names: BTreeSet<String> = claimed.chain(self.0.keys().cloned()).collect();
        let service = |name: String| {
            let service = self.assign_name(&name, claims);
            (name, service)
        };
        names.into_iter().map(service).collect()
    }

    fn assign_name(&mut self, name: &str, claims: &BTreeMap<String, NameClaim>) -> NameService {
        if let Some(owner) = self.0.get(name) {
            return match claims.get(owner).map(|claim| claim.state) {
                Some(LoadState::Loaded) => NameService::Served(owner.clone()),
                Some(LoadState::Refused) => NameService::Refused,
                Some(LoadState::Pending) | None => NameService::Pending,
            };
        }
        let claimants = || claims.iter().filter(|(_, claim)| claim.name == *name);
        if claimants().any(|(_, claim)| claim.state == LoadState::Pending) {
            return NameService::Pending;
        }
        let loaded = || claimants().filter(|(_, claim)| claim.state == LoadState::Loaded).map(|(object, _)| object);
        match loaded().find(|object| object.as_str() == name).or_else(|| loaded().next()) {
            Some(owner) => {
                self.0.insert(name.to_owned(), owner.clone());
                NameService::Served(owner.clone())
            }
            None => NameService::Refused,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::LoadState::{Loaded, Pending, Refused};
    use super::*;

    fn claims(of: &[(&str, LoadState)]) -> BTreeMap<String, NameClaim> {
        let claim = |state| NameClaim { name: "udev".to_owned(), state };
        of.iter().map(|(object, state)| ((*object).to_owned(), claim(*state))).collect()
    }

    fn assign(owners: &mut NameOwners, of: &[(&str, LoadState)]) -> Option<NameService> {
        owners.assign(&claims(of), true).remove("udev")
    }

    fn served(object: &str) -> Option<NameService> {
        Some(NameService::Served(object.to_owned()))
    }

    fn owned_by(object: &str) -> NameOwners {
        NameOwners([("udev".to_owned(), object.to_owned())].into())
    }

    #[test] // rule 132
    fn contested_name_waits_for_all_that_claim_it() {
        let mut owners = NameOwners::default();
        assert_eq!(assign(&mut owners, &[("cameras", Loaded), ("udev", Pending)]), Some(NameService::Pending));
        assert_eq!(assign(&mut owners, &[("cameras", Loaded), ("udev", Loaded)]), served("udev"), "its namesake");
        let mut owners = NameOwners::default();
        assert_eq!(assign(&mut owners, &[("b", Loaded), ("a", Loaded), ("udev", Refused)]), served("a"));
        assert_eq!(assign(&mut owners, &[("b", Loaded), ("a", Loaded), ("udev", Loaded)]), served("a"), "it serves on");
    }

    #[test] // rule 132
    fn owner_keeps_its_name_over_a_restart() {
        for (state, expected) in [
            (Loaded, served("node-devices")),
            (Pending, Some(NameService::Pending)),
            (Refused, Some(NameService::Refused)),
        ] {
            let mut owners = owned_by("node-devices");
            for rival in ["cameras", "udev"] {
                assert_eq!(assign(&mut owners, &[(rival, Loaded), ("node-devices", state)]), expected, "{rival}");
            }
            assert_eq!(owners, owned_by("node-devices"));
        }
    }

    #[test] // rule 132
    fn owner_that_may_still_exist_keeps_its_name() {
        let mut owners = owned_by("node-devices");
        assert_eq!(
            owners.assign(&BTreeMap::new(), false)["udev"],
            NameService::Pending,
            "nor is it a remote handler's"
        );
        let rival = claims(&[("cameras", Loaded)]);
        assert_eq!(owners.assign(&rival, false)["udev"], NameService::Pending);
        assert_eq!(owners.assign(&rival, true).remove("udev"), served("cameras"), "it is deleted");
        assert_eq!(owners, owned_by("cameras"));
    }

    #[test] // rule 132
    fn object_that_claims_another_name_owns_the_former_no_more() {
        let mut owners = owned_by("a");
        let mut both = claims(&[("a", Loaded), ("b", Loaded)]);
        both.get_mut("a").unwrap().name = "mdns".to_owned();
        let services = owners.assign(&both, true);
        assert_eq!(services["mdns"], NameService::Served("a".to_owned()));
        assert_eq!(services["udev"], NameService::Served("b".to_owned()));
    }

    #[test] // rule 132, threat 58
    fn remote_handlers_wait_for_the_component_of_the_name() {
        let served = NameService::Served("udev".to_owned());
        for (service, awaited, joins) in [
            (None, true, true),
            (Some(&served), true, false),
            (Some(&served), false, true),
            (Some(&NameService::Pending), false, false),
            (Some(&NameService::Refused), false, false),
        ] {
            assert_eq!(remote_may_join(service, awaited), joins, "{service:?} {awaited}");
        }
    }
}
