//! The last valid Configurations and DiscoveryHandlers of each file: a file that becomes invalid while no agent runs deletes
//! nothing. Secrets and ConfigMaps are not written: the state directory holds no secret.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use akri_api::manifest::{self, Manifest, Object};
use akri_api::{ConfigurationSpec, configuration_to_model};
use akri_model::names::Key;
use akri_node::saved::Saved;
use serde_json::Value;

/// The objects of each file, as in the state directory.
pub(super) type ManifestBackup = Saved<BTreeMap<PathBuf, Vec<Value>>>;

/// Reads the backup of a state directory.
pub(super) fn open(state: &Path) -> ManifestBackup {
    Saved::open(Some(state), "manifests.json")
}

/// Returns the specs of all Configurations in the backup.
pub(super) fn specs(state: &Path) -> BTreeMap<Key, ConfigurationSpec> {
    let spec = |manifest: Manifest| match manifest.object {
        Object::Configuration(object) => Some((configuration_to_model(&object).key, object.spec)),
        _ => None,
    };
    objects(&open(state)).flat_map(|(_, manifests)| manifests).filter_map(spec).collect()
}

/// Returns the files of Configurations, by namespace and name.
pub fn manifest_files(state: &Path) -> BTreeMap<String, String> {
    let backup = open(state);
    let key = |manifest: &Manifest| match &manifest.object {
        Object::Configuration(object) => Some(configuration_to_model(object).key.to_string()),
        _ => None,
    };
    let files = objects(&backup).flat_map(|(file, manifests)| {
        manifests.iter().filter_map(key).map(|key| (key, file.display().to_string())).collect::<Vec<_>>()
    });
    files.collect()
}

/// Returns the valid objects of each file.
pub(super) fn objects(backup: &ManifestBackup) -> impl Iterator<Item = (PathBuf, Vec<Manifest>)> {
    backup.iter().map(|(file, objects)| {
        let read = |object: &Value| manifest::parse(file, &object.to_string()).0;
        (file.clone(), objects.iter().flat_map(read).collect())
    })
}

/// Replaces the backup.
pub(super) fn save<'m>(backup: &mut ManifestBackup, files: impl Iterator<Item = (&'m PathBuf, &'m Vec<Manifest>)>) {
    **backup = files.map(|(file, objects)| (file.clone(), objects.iter().filter_map(value).collect())).collect();
    backup.save();
}

fn value(manifest: &Manifest) -> Option<Value> {
    match &manifest.object {
        Object::Configuration(object) => serde_json::to_value(object).ok(),
        Object::DiscoveryHandler(object) => serde_json::to_value(object).ok(),
        Object::Data(..) => None,
    }
}
