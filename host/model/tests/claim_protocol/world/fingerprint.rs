//! Fingerprints of worlds, which tell the exploration what it has seen.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use akri_model::instance::Version;
use akri_model::slots::{ApiView, SlotTable, SyncStep};

use super::{Message, World};

impl World {
    /// Hashes the world with versions and UIDs by rank: worlds that differ only in how often something happened are one.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut versions: BTreeSet<u64> = [self.api.version].into();
        let mut uids: BTreeSet<String> = ["1".to_owned(), self.api.uid.to_string()].into(); // whether it was made again matters
        let mut add = |version: Option<&Version>, uid: &str| {
            versions.extend(version.map(|version| version.0.parse::<u64>().unwrap()));
            uids.insert(uid.to_owned());
        };
        let tables = self.nodes.iter().filter_map(|node| node.table.as_ref());
        for view in tables.map(SlotTable::api).chain(self.network.iter().filter_map(Message::view)) {
            if let ApiView::Present(published) = view {
                add(Some(&published.version), &published.uid);
            }
        }
        for message in &self.network {
            match message {
                Message::Answer { .. } => {}
                Message::Request { step: SyncStep::Patch(patch), .. } => add(patch.version.as_ref(), &patch.uid),
                Message::Request { .. } => {}
            }
        }
        let ranks = Ranks { versions, uids };
        let mut hasher = DefaultHasher::new();
        self.hash_with(&ranks, &mut hasher);
        hasher.finish()
    }

    fn hash_with(&self, ranks: &Ranks, hasher: &mut DefaultHasher) {
        (self.faults, self.api.exists, ranks.version(&self.api.version.to_string()), &self.api.slots).hash(hasher);
        ranks.uid(&self.api.uid.to_string()).hash(hasher);
        for node in &self.nodes {
            (node.table.is_some(), node.waiting, &node.allocate, &node.kubelet, node.allocates).hash(hasher);
            if let Some(table) = &node.table {
                (table.taken().collect::<Vec<_>>(), table.reserved()).hash(hasher);
                ranks.hash_view(table.api(), hasher);
            }
            for claims in [Some(&node.journal), node.writing.as_ref()] {
                let claims = claims.map(|claims| {
                    claims
                        .iter()
                        .map(|(slot, claim)| (*slot, &claim.usage, claim.seen, claim.state as u8))
                        .collect::<Vec<_>>()
                });
                claims.hash(hasher);
            }
        }
        for message in &self.network {
            match message {
                Message::Answer { node, view } => {
                    (0, node).hash(hasher);
                    ranks.hash_view(view, hasher);
                }
                Message::Request { node, step, late } => {
                    (1, node, late).hash(hasher);
                    if let SyncStep::Patch(patch) = step {
                        let version = patch.version.as_ref().map(|version| ranks.version(&version.0));
                        (ranks.uid(&patch.uid), version, &patch.changes).hash(hasher);
                    }
                }
            }
        }
    }
}

/// Versions and UIDs that occur in a world, in order.
struct Ranks {
    versions: BTreeSet<u64>,
    uids: BTreeSet<String>,
}

impl Ranks {
    fn version(&self, version: &str) -> Option<usize> {
        let version: u64 = version.parse().unwrap();
        self.versions.iter().position(|known| *known == version)
    }

    fn uid(&self, uid: &str) -> Option<usize> {
        self.uids.iter().position(|known| known == uid)
    }

    fn hash_view(&self, view: &ApiView, hasher: &mut DefaultHasher) {
        match view {
            ApiView::Unknown => 0.hash(hasher),
            ApiView::Absent => 1.hash(hasher),
            ApiView::Present(published) => {
                (2, self.version(&published.version.0), self.uid(&published.uid), &published.slots).hash(hasher);
            }
        }
    }
}
