//! The last valid Configurations and DiscoveryHandlers of each file, kept so that a file that becomes invalid while no
//! agent runs deletes nothing. Secrets and ConfigMaps are not written: the state directory holds no secret.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use akri_api::manifest::{self, Manifest, Object};
use akri_api::{ConfigurationSpec, configuration_to_model};
use akri_model::names::Key;
use akri_node::replace::replace;
use serde_json::Value;
use tracing::warn;

/// Objects by file.
pub(super) type Files = BTreeMap<PathBuf, Vec<Manifest>>;

/// The backup file in the state directory.
#[derive(Debug)]
pub(super) struct ManifestBackup {
    path: PathBuf,
    /// The content of the file.
    text: Vec<u8>,
}

/// Returns the specs of all Configurations in the backup.
pub(super) fn specs(state: &Path) -> BTreeMap<Key, ConfigurationSpec> {
    let (_, files) = ManifestBackup::open(state);
    let spec = |manifest: Manifest| match manifest.object {
        Object::Configuration(object) => Some((configuration_to_model(&object).key, object.spec)),
        _ => None,
    };
    files.into_values().flatten().filter_map(spec).collect()
}

impl ManifestBackup {
    /// Reads the backup; an unreadable one is treated as empty.
    pub(super) fn open(state: &Path) -> (Self, Files) {
        let path = state.join("manifests.json");
        let text = fs::read(&path).unwrap_or_default(); // the file does not exist at first
        let files: BTreeMap<PathBuf, Vec<Value>> = serde_json::from_slice(&text).unwrap_or_default();
        let objects = |(file, objects): (PathBuf, Vec<Value>)| {
            let read = |object: &Value| manifest::parse(&file, &object.to_string()).0;
            (file.clone(), objects.iter().flat_map(read).collect())
        };
        let files = files.into_iter().map(objects).collect();
        (Self { path, text }, files)
    }

    /// Writes the backup if it changed.
    pub(super) fn write<'m>(&mut self, files: impl Iterator<Item = (&'m PathBuf, &'m Vec<Manifest>)>) {
        let values = |manifests: &Vec<Manifest>| manifests.iter().filter_map(value).collect::<Vec<Value>>();
        let files: BTreeMap<&PathBuf, Vec<Value>> = files.map(|(file, objects)| (file, values(objects))).collect();
        let text = serde_json::to_vec(&files).unwrap_or_default(); // a path that is no UTF-8 is not backup
        if text == self.text {
            return;
        }
        match replace(&self.path, &text, true) {
            Ok(()) => self.text = text,
            Err(error) => warn!("cannot write '{}': {error}", self.path.display()),
        }
    }
}

fn value(manifest: &Manifest) -> Option<Value> {
    match &manifest.object {
        Object::Configuration(object) => serde_json::to_value(object).ok(),
        Object::DiscoveryHandler(object) => serde_json::to_value(object).ok(),
        Object::ConfigMap(_) | Object::Secret(_) => None,
    }
}
