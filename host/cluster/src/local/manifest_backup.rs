//! The last valid Configurations and DiscoveryHandlers of each file: a file that becomes invalid while no agent runs deletes
//! nothing. Secrets and ConfigMaps are not written: the state directory holds no secret.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use akri_api::manifest::{self, Manifest, Object};
use akri_api::{ConfigurationSpec, configuration_to_model};
use akri_model::names::Key;
use akri_node::json_file;
use serde_json::Value;
use tracing::warn;

/// The file in the state directory.
const FILE: &str = "manifests.json";

/// Reads the valid objects of each file from the backup of a state directory; a backup that can't be read counts as empty.
pub(super) fn read(state: &Path) -> BTreeMap<PathBuf, Vec<Manifest>> {
    let backup = json_file::read::<BTreeMap<PathBuf, Vec<Value>>>(&state.join(FILE));
    let backup = backup.inspect_err(|error| warn!("{error}; it counts as empty")).ok().flatten();
    let objects = backup.into_iter().flatten().map(|(file, objects)| {
        let read = |object: &Value| manifest::parse(&file, &object.to_string()).0;
        let manifests = objects.iter().flat_map(read).collect();
        (file, manifests)
    });
    objects.collect()
}

/// Returns the specs of all Configurations in the backup.
pub(super) fn specs(state: &Path) -> BTreeMap<Key, ConfigurationSpec> {
    let spec = |manifest: Manifest| match manifest.object {
        Object::Configuration(object) => Some((configuration_to_model(&object).key, object.spec)),
        _ => None,
    };
    read(state).into_values().flatten().filter_map(spec).collect()
}

/// Returns the files of Configurations, by namespace and name.
pub fn manifest_files(state: &Path) -> BTreeMap<String, String> {
    let key = |manifest: &Manifest| match &manifest.object {
        Object::Configuration(object) => Some(configuration_to_model(object).key.to_string()),
        _ => None,
    };
    let files = read(state).into_iter().flat_map(|(file, manifests)| {
        manifests.iter().filter_map(key).map(|key| (key, file.display().to_string())).collect::<Vec<_>>()
    });
    files.collect()
}

/// Replaces the backup in a state directory. If that fails, the next change of a file repeats it.
pub(super) fn save<'m>(state: &Path, files: impl Iterator<Item = (&'m PathBuf, &'m Vec<Manifest>)>) {
    let backup: BTreeMap<&PathBuf, Vec<Value>> =
        files.map(|(file, objects)| (file, objects.iter().filter_map(value).collect())).collect();
    let _ = json_file::write(&state.join(FILE), &backup, true).inspect_err(|error| warn!("{error}"));
}

fn value(manifest: &Manifest) -> Option<Value> {
    match &manifest.object {
        Object::Configuration(object) => serde_json::to_value(object).ok(),
        Object::DiscoveryHandler(object) => serde_json::to_value(object).ok(),
        Object::Data(..) => None,
    }
}
