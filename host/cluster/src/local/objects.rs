//! Objects as JSON files, one each, replaced atomically.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{
    self,
    ErrorKind::{InvalidData, UnexpectedEof},
};
use std::path::{Path, PathBuf};

use akri_api::{Configuration, DiscoveryHandler, IDENTITY_ANNOTATION, Instance};
use akri_kube::watch::{key_of, version_of};
use akri_model::names::Key;
use akri_node::if_found;
use akri_node::json_file::{failed, read, write};
use kube::ResourceExt as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::warn;

use super::manifest_backup;
use crate::Manifests;

/// The objects of a node. Instances are in memory and in files `instances/<namespace>/<name>.json` below the state
/// directory, Configurations in `configurations/` likewise, and handlers in `handlers/<name>.json`. The agent's lock
/// makes it the only writer.
#[derive(Debug)]
pub(super) struct Objects {
    state: PathBuf,
    instances: BTreeMap<Key, Instance>,
    /// The Instances of each device.
    by_identity: BTreeSet<(String, Key)>,
    /// The last number given to an Instance.
    version: u64,
}

impl Objects {
    /// Creates the directories if needed and reads the Instances. A malformed file is set aside, and the Instance is
    /// recreated from the journal.
    pub(super) fn open(state: &Path) -> io::Result<Self> {
        for name in entries(&state.join("handlers"))? {
            remove(&name)?; // they are about the agent that ended
        }
        for kind in ["instances", "configurations", "handlers"] {
            let path = state.join(kind);
            fs::create_dir_all(&path).map_err(|error| failed("create directory", &path, &error))?;
        }
        let mut instances = BTreeMap::new();
        for path in files(&state.join("instances"))? {
            match read::<Instance>(&path) {
                Ok(object) => instances.extend(object.map(|object| (key_of(&object.metadata), object))),
                Err(error) if matches!(error.kind(), InvalidData | UnexpectedEof) => set_aside(&path, &error)?,
                Err(error) => return Err(error),
            }
        }
        let version = instances.values().map(|object| version_of(&object.metadata)).max().unwrap_or_default();
        let mut objects =
            Self { state: state.to_owned(), instances: BTreeMap::new(), by_identity: BTreeSet::new(), version };
        instances.into_values().for_each(|object| objects.keep(object));
        Ok(objects)
    }

    fn keep(&mut self, object: Instance) {
        let key = key_of(&object.metadata);
        self.drop(&key);
        if let Some(identity) = identity_of(&object) {
            self.by_identity.insert((identity.to_owned(), key.clone()));
        }
        self.instances.insert(key, object);
    }

    fn drop(&mut self, key: &Key) {
        let Some(before) = self.instances.remove(key) else { return };
        if let Some(identity) = identity_of(&before) {
            self.by_identity.remove(&(identity.to_owned(), key.clone()));
        }
    }

    /// Returns the Instances of a device.
    pub(super) fn of_device(&self, identity: &str) -> impl Iterator<Item = &Instance> {
        let from = self.by_identity.range((identity.to_owned(), Key::default())..);
        from.take_while(move |(of, _)| of == identity).filter_map(|(_, key)| self.instances.get(key))
    }

    pub(super) fn instances(&self) -> impl Iterator<Item = &Instance> {
        self.instances.values()
    }

    pub(super) fn instance(&self, key: &Key) -> Option<&Instance> {
        self.instances.get(key)
    }

    /// Writes an Instance. That of a shared device is on disk when this returns, since there is no other record of it; a
    /// local one is in the journal.
    pub(super) fn put_instance(&mut self, mut object: Instance) -> io::Result<()> {
        let key = key_of(&object.metadata);
        self.version += 1;
        object.metadata.resource_version = Some(self.version.to_string());
        write(&path(&self.state, "instances", &key), &object, object.spec.shared)?;
        self.keep(object);
        Ok(())
    }

    pub(super) fn remove_instance(&mut self, key: &Key) -> io::Result<()> {
        remove(&path(&self.state, "instances", key))?;
        self.drop(key);
        Ok(())
    }

    /// Removes what Configurations left that were deleted while no agent ran: their status, and their Instances, as Kubernetes'
    /// garbage collector does by owner reference.
    pub(super) fn collect_garbage(&mut self, manifests: &Manifests) -> io::Result<()> {
        if !manifests.complete {
            return Ok(());
        }
        let exists = |owner: &Key| manifests.configurations.contains_key(owner);
        for file in files(&self.state.join("configurations"))? {
            if !key_of_file(&file).is_some_and(|key| exists(&key)) {
                remove(&file)?;
            }
        }
        let owner = |key: &Key, object: &Instance| Key::new(&*key.namespace, &*object.spec.configuration_name);
        let orphans = self.instances.iter().filter(|(key, object)| !exists(&owner(key, object)));
        let orphans: Vec<Key> = orphans.map(|(key, _)| key.clone()).collect();
        orphans.iter().try_for_each(|key| self.remove_instance(key))
    }

    /// Returns the file of the status of a Configuration, or of a discovery handler, which has no namespace.
    pub(super) fn report_file(&self, object: &Key) -> PathBuf {
        path(&self.state, if object.namespace.is_empty() { "handlers" } else { "configurations" }, object)
    }
}

/// Returns all Instances of a state directory, by namespace and name.
pub fn read_instances(state: &Path) -> io::Result<Vec<Instance>> {
    read_each(&files(&state.join("instances"))?)
}

/// Returns all Configurations with their status, by namespace and name. A status without a manifest is not one.
pub fn read_configurations(state: &Path) -> io::Result<Vec<Configuration>> {
    let mut configurations: Vec<Configuration> = read_each(&files(&state.join("configurations"))?)?;
    let mut specs = manifest_backup::specs(state); // a status is kept without them
    configurations
        .retain_mut(|object| specs.remove(&key_of(&object.metadata)).map(|spec| object.spec = spec).is_some());
    Ok(configurations)
}

/// Returns all discovery handlers with their status, by name.
pub fn read_handlers(state: &Path) -> io::Result<Vec<DiscoveryHandler>> {
    read_each(&object_files(&state.join("handlers"))?)
}

fn identity_of(object: &Instance) -> Option<&str> {
    object.annotations().get(IDENTITY_ANNOTATION).map(String::as_str)
}

/// Returns the namespace and the name of the object that a file holds.
fn key_of_file(file: &Path) -> Option<Key> {
    let namespace = file.parent()?.file_name()?.to_str()?;
    Some(Key::new(namespace, file.file_stem()?.to_str()?))
}

fn path(state: &Path, kind: &str, key: &Key) -> PathBuf {
    state.join(kind).join(&key.namespace).join(format!("{}.json", key.name))
}

fn read_each<T: DeserializeOwned>(files: &[PathBuf]) -> io::Result<Vec<T>> {
    let objects: io::Result<Vec<Option<T>>> = files.iter().map(|path| read(path)).collect();
    Ok(objects?.into_iter().flatten().collect())
}

/// Returns the object files of all namespaces, in order.
fn files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let files: Result<Vec<_>, _> = entries(directory)?.iter().map(|namespace| object_files(namespace)).collect();
    Ok(files?.concat())
}

fn object_files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = entries(directory)?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    Ok(files)
}

fn set_aside(path: &Path, error: &io::Error) -> io::Result<()> {
    let aside = path.with_extension("damaged");
    warn!("{error}, which is not a valid object; kept as '{}'", aside.display());
    fs::rename(path, aside).map_err(|error| failed("set aside", path, &error))
}

/// Returns the paths in a directory, in order; none if the directory does not exist.
fn entries(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let failed = |error| failed("list", directory, &error);
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

/// Removes a file, if it exists.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    if_found(fs::remove_file(path)).map(drop).map_err(|error| failed("remove", path, &error))
}

/// Changes an object, and writes it if it is another one then. An absent or unreadable one counts as empty.
pub(super) fn update<T: Default + Serialize + DeserializeOwned>(
    path: &Path,
    change: impl FnOnce(T) -> T,
) -> io::Result<()> {
    let before: Option<T> = read(path).unwrap_or_default();
    write(path, &change(before.unwrap_or_default()), false)
}
