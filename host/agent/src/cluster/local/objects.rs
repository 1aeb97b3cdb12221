//! Objects as files: one JSON file each, replaced by atomic rename, so that a reader or a crash sees the old one or the
//! new one and nothing in between.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use akri_api::{Configuration, DiscoveryHandler, Instance};
use akri_model::names::Key;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::warn;

use super::{remembered, reports};
use crate::cluster::{HandlerReport, Manifests, Report};

/// What went wrong with a file.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It could not be read, written or removed.
    #[error("cannot {action} '{}': {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It holds something else.
    #[error("'{}' is not a valid object: {source}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: serde_json::Error,
    },
}

/// The objects of a node: in memory, and as files `instances/<namespace>/<name>.json` and `configurations/` likewise below
/// the state directory, for people and for the next start, and `handlers/<name>.json` for people. Nobody else writes these
/// files: the agent holds a lock.
#[derive(Debug)]
pub(super) struct Objects {
    state: PathBuf,
    instances: BTreeMap<Key, Instance>,
}

impl Objects {
    /// Makes the directories if need be and reads what is there. A file that can't be read as an object is set aside: an
    /// Instance is a copy of what the journal says, and is made anew.
    pub(super) fn open(state: &Path) -> Result<Self, StoreError> {
        for name in entries(&state.join("handlers"))? {
            remove(&name)?; // they are about the agent that ended
        }
        for kind in ["instances", "configurations", "handlers"] {
            let path = state.join(kind);
            fs::create_dir_all(&path).map_err(|source| StoreError::Io { action: "create directory", path, source })?;
        }
        let mut instances = BTreeMap::new();
        for path in files(&state.join("instances"))? {
            match read::<Instance>(&path) {
                Ok(Some(object)) => drop(instances.insert(key_of(&object), object)),
                Ok(None) => {}
                Err(error @ StoreError::Malformed { .. }) => set_aside(&path, &error)?,
                Err(error) => return Err(error),
            }
        }
        Ok(Self { state: state.to_owned(), instances })
    }

    pub(super) fn instances(&self) -> impl Iterator<Item = &Instance> {
        self.instances.values()
    }

    pub(super) fn instance(&self, key: &Key) -> Option<&Instance> {
        self.instances.get(key)
    }

    /// Writes an Instance. That of a shared device is on disk when this returns, since there is no other record of it; a
    /// local one is in the journal.
    pub(super) fn put_instance(&mut self, object: Instance) -> Result<(), StoreError> {
        let key = key_of(&object);
        write(&path(&self.state, "instances", &key), &object, object.spec.shared)?;
        self.instances.insert(key, object);
        Ok(())
    }

    pub(super) fn remove_instance(&mut self, key: &Key) -> Result<(), StoreError> {
        remove(&path(&self.state, "instances", key))?;
        self.instances.remove(key);
        Ok(())
    }

    /// Removes Instances whose Configuration went while no agent was there to see it, as Kubernetes' garbage collector
    /// does by owner reference.
    pub(super) fn collect_garbage(&mut self, manifests: &Manifests) -> Result<(), StoreError> {
        let exists = |key: &Key, object: &Instance| {
            let owner = Key::new(key.namespace.clone(), object.spec.configuration_name.clone());
            !manifests.complete || manifests.configurations.contains_key(&owner)
        };
        let orphans = self.instances.iter().filter(|(key, object)| !exists(key, object));
        let orphans: Vec<Key> = orphans.map(|(key, _)| key.clone()).collect();
        orphans.iter().try_for_each(|key| self.remove_instance(key))
    }

    /// Writes a Configuration's status; a report that says nothing new writes nothing.
    pub(super) fn put_report(&self, report: &Report) -> Result<(), StoreError> {
        let path = path(&self.state, "configurations", &report.key);
        let before: Option<Configuration> = read(&path).unwrap_or_default(); // a status that can't be read is made anew
        let after = reports::of_configuration(report, before.clone().unwrap_or_default(), now());
        if before.as_ref() == Some(&after) { Ok(()) } else { write(&path, &after, false) }
    }

    pub(super) fn remove_report(&self, key: &Key) -> Result<(), StoreError> {
        remove(&path(&self.state, "configurations", key))
    }

    /// The same of a discovery handler.
    pub(super) fn put_handler_report(&self, report: &HandlerReport) -> Result<(), StoreError> {
        let path = handler_path(&self.state, &report.name);
        let before: Option<DiscoveryHandler> = read(&path).unwrap_or_default();
        let after = reports::of_handler(report, before.clone().unwrap_or_default(), now());
        if before.as_ref() == Some(&after) { Ok(()) } else { write(&path, &after, false) }
    }

    pub(super) fn remove_handler_report(&self, name: &str) -> Result<(), StoreError> {
        remove(&handler_path(&self.state, name))
    }
}

/// All Instances of a state directory, by namespace and name, for a look from outside.
pub fn read_instances(state: &Path) -> Result<Vec<Instance>, StoreError> {
    read_all(&state.join("instances"))
}

/// All Configurations with what was reported of them, by namespace and name.
pub fn read_configurations(state: &Path) -> Result<Vec<Configuration>, StoreError> {
    let mut configurations: Vec<Configuration> = read_all(&state.join("configurations"))?;
    let mut specs = remembered::specs(state); // a status is kept without them
    for object in &mut configurations {
        let key = Key::new(object.namespace().unwrap_or_default(), object.name_any());
        object.spec = specs.remove(&key).unwrap_or_else(|| object.spec.clone());
    }
    Ok(configurations)
}

/// What was reported of all discovery handlers, by name.
pub fn read_handlers(state: &Path) -> Result<Vec<DiscoveryHandler>, StoreError> {
    read_each(entries(&state.join("handlers"))?)
}

fn key_of(object: &Instance) -> Key {
    let part = |part: &Option<String>| part.clone().unwrap_or_default();
    Key::new(part(&object.metadata.namespace), part(&object.metadata.name))
}

fn path(state: &Path, kind: &str, key: &Key) -> PathBuf {
    state.join(kind).join(&key.namespace).join(format!("{}.json", key.name))
}

fn handler_path(state: &Path, name: &str) -> PathBuf {
    state.join("handlers").join(format!("{name}.json"))
}

/// The current time, for objects.
pub(super) fn now() -> Timestamp {
    Timestamp::now()
}

fn read_all<T: DeserializeOwned>(directory: &Path) -> Result<Vec<T>, StoreError> {
    read_each(files(directory)?)
}

fn read_each<T: DeserializeOwned>(mut files: Vec<PathBuf>) -> Result<Vec<T>, StoreError> {
    files.retain(|file| is_object(file));
    let objects: Result<Vec<Option<T>>, StoreError> = files.iter().map(|path| read(path)).collect();
    Ok(objects?.into_iter().flatten().collect())
}

fn is_object(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "json")
}

/// The object files of all namespaces, in order.
fn files(directory: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let mut files = Vec::new();
    for namespace in entries(directory)? {
        files.extend(entries(&namespace)?);
    }
    files.retain(|file| is_object(file));
    Ok(files)
}

fn set_aside(path: &Path, error: &StoreError) -> Result<(), StoreError> {
    let aside = path.with_extension("damaged");
    warn!("{error}; kept as '{}'", aside.display());
    fs::rename(path, aside).map_err(|source| StoreError::Io { action: "set aside", path: path.to_owned(), source })
}

/// The paths in a directory in order; none if there is no directory.
fn entries(directory: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let failed = |source| StoreError::Io { action: "list", path: directory.to_owned(), source };
    let listing = match fs::read_dir(directory) {
        Ok(listing) => listing,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(failed(error)),
    };
    let paths: Result<Vec<PathBuf>, io::Error> = listing.map(|entry| Ok(entry?.path())).collect();
    let mut paths = paths.map_err(failed)?;
    paths.sort();
    Ok(paths)
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, StoreError> {
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|source| StoreError::Malformed { path: path.to_owned(), source }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(StoreError::Io { action: "read", path: path.to_owned(), source }),
    }
}

fn remove(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(StoreError::Io { action: "remove", path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}

fn write<T: Serialize>(path: &Path, object: &T, sync: bool) -> Result<(), StoreError> {
    let failed = |source| StoreError::Io { action: "write", path: path.to_owned(), source };
    let bytes =
        serde_json::to_vec_pretty(object).map_err(|source| StoreError::Malformed { path: path.to_owned(), source })?;
    replace(path, &bytes, sync).map_err(failed)
}

/// Replaces a file as a whole: written beside it, renamed over it.
fn replace(path: &Path, bytes: &[u8], sync: bool) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let beside = path.with_extension("json.new");
    let mut file = File::create(&beside)?;
    file.write_all(bytes)?;
    if sync {
        file.sync_data()?;
    }
    fs::rename(&beside, path)
}
