//! The last good Configurations and DiscoveryHandlers of each file, so that a file that breaks while no agent runs takes
//! nothing away either. Secrets and ConfigMaps are not written: the state directory holds no secret.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use akri_api::manifest::{self, Manifest, Object};
use akri_api::{ConfigurationSpec, configuration_to_model};
use akri_model::names::Key;
use serde_json::Value;
use tracing::warn;

use crate::replace::replace;

/// Objects by file.
pub(super) type Files = BTreeMap<PathBuf, Vec<Manifest>>;

/// A file of the state directory.
#[derive(Debug)]
pub(super) struct Remembered {
    path: PathBuf,
    /// What it holds.
    text: Vec<u8>,
}

/// The specs of all Configurations, for a look from outside.
pub(super) fn specs(state: &Path) -> BTreeMap<Key, ConfigurationSpec> {
    let (_, files) = Remembered::open(state);
    let spec = |manifest: Manifest| match manifest.object {
        Object::Configuration(object) => Some((configuration_to_model(&object).key, object.spec)),
        _ => None,
    };
    files.into_values().flatten().filter_map(spec).collect()
}

impl Remembered {
    /// What was written last; what can't be read is forgotten.
    pub(super) fn open(state: &Path) -> (Self, Files) {
        let path = state.join("manifests.json");
        let text = fs::read(&path).unwrap_or_default(); // there is none at first
        let files: BTreeMap<PathBuf, Vec<Value>> = serde_json::from_slice(&text).unwrap_or_default();
        let objects = |(file, objects): (PathBuf, Vec<Value>)| {
            let read = |object: &Value| manifest::parse(&file, &object.to_string()).0;
            (file.clone(), objects.iter().flat_map(read).collect())
        };
        let files = files.into_iter().map(objects).collect();
        (Self { path, text }, files)
    }

    /// Writes what is new.
    pub(super) fn write<'m>(&mut self, files: impl Iterator<Item = (&'m PathBuf, &'m Vec<Manifest>)>) {
        let values = |manifests: &Vec<Manifest>| manifests.iter().filter_map(value).collect::<Vec<Value>>();
        let files: BTreeMap<&PathBuf, Vec<Value>> = files.map(|(file, objects)| (file, values(objects))).collect();
        let text = serde_json::to_vec(&files).unwrap_or_default(); // a path that is no UTF-8 is not remembered
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
