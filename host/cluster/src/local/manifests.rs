//! Manifests in directories. All files are read at each change; an unreadable file keeps its previous objects.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use akri_api::data;
use akri_api::manifest::{self, Identity, Manifest, ManifestError, Object};
use akri_api::validate::FieldError;
use akri_api::{ConfigurationSpec, configuration_to_model};
use akri_model::configuration::Configuration;
use akri_model::names::{HashInput, Key};
use akri_model::resolve::{Stored, Values};
use akri_node::regular_file;
use akri_node::saved::Saved;
use akri_node::watch_dir::{WatchDir, any_changed};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{Level, error, info, warn};
use zeroize::Zeroizing;

use super::manifest_backup;
use crate::{HandlerObject, Manifests, Watches, send_changed};

/// Limit on a manifest file, in bytes.
pub const MAX_FILE: u64 = 4 << 20;

/// Errors that are logged and shown at a time, and likewise other messages about manifests.
const MAX_SHOWN: usize = 10;

/// The content of a directory, by file.
#[derive(Debug, Default)]
pub struct Scan {
    /// The objects of each readable file.
    pub files: BTreeMap<PathBuf, Vec<Manifest>>,
    /// The errors found.
    pub errors: Vec<ManifestError>,
}

/// Reads the manifests (`*.yaml`, `*.yml`, `*.json`) of a directory, in order of name, without its subdirectories.
pub fn read_directory(directory: &Path) -> Scan {
    let mut scan = Scan::default();
    let listing = fs::read_dir(directory).and_then(|entries| entries.collect::<io::Result<Vec<_>>>());
    match listing {
        Ok(entries) => {
            let mut paths: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
            paths.sort();
            paths.into_iter().filter(|path| is_manifest(path)).for_each(|path| read_file(path, &mut scan));
        }
        Err(error) => scan.errors.push(file_error(directory, format!("cannot list the directory: {error}"))),
    }
    scan
}

fn is_manifest(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or(".");
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    !name.starts_with('.') && matches!(extension, "yaml" | "yml" | "json")
}

fn read_file(path: PathBuf, scan: &mut Scan) {
    match regular_file::read_text(&path, MAX_FILE).map(Zeroizing::new) {
        Ok(text) => {
            let (manifests, errors) = manifest::parse(&path, &text);
            scan.errors.extend(errors);
            scan.files.insert(path, manifests);
        }
        Err(error) => scan.errors.push(file_error(&path, format!("cannot read the file: {error}"))),
    }
}

fn file_error(path: &Path, message: String) -> ManifestError {
    ManifestError::of_file(path, None, message)
}

/// Watches directories; of objects with one name the one in the later directory wins. Valid objects are backed up in
/// the state directory. The first read is done when this returns; the watch ends with the task.
pub(super) fn watch(directories: Vec<PathBuf>, state: &Path) -> (Watches, JoinSet<()>) {
    let mut watched: Vec<WatchDir> = directories.iter().map(|directory| WatchDir::new(directory)).collect();
    let mut reader = Reader::new(directories, state);
    let first = reader.read();
    let (manifests, values) =
        (watch::Sender::new(Arc::new(first.manifests)), watch::Sender::new(Arc::new(first.values)));
    let watches = Watches { manifests: manifests.clone(), values: values.clone(), ..Watches::default() };
    let task = async move {
        loop {
            any_changed(&mut watched).await;
            let read_again = move || {
                let read = reader.read();
                (reader, read)
            };
            let Ok((back, read)) = tokio::task::spawn_blocking(read_again).await else { return };
            reader = back;
            // Values first, so that a new Configuration finds its new Secret.
            send_changed(&values, read.values);
            send_changed(&manifests, read.manifests);
        }
    };
    (watches, JoinSet::from_iter([task]))
}

/// The result of reading all directories.
#[derive(Debug, PartialEq)]
struct Read {
    manifests: Manifests,
    values: Values,
}

/// The location of a file: the index of its directory, and its path.
type Place = (usize, PathBuf);

/// Reads the directories repeatedly, and keeps the state between reads.
struct Reader {
    directories: Vec<PathBuf>,
    /// Last valid objects of each file.
    known: BTreeMap<Place, Vec<Manifest>>,
    /// The state directory.
    state: PathBuf,
    /// The file system's device and the inode of each directory, as in the state directory. A directory of the same path may be
    /// another one: that below a volume which is not mounted.
    inodes: Saved<BTreeMap<PathBuf, String>>,
    /// The messages of the last read, logged then or before.
    logged: Vec<(Level, String)>,
    /// The last version of each Configuration, for `metadata.generation`.
    generations: BTreeMap<Key, Configuration>,
}

impl Reader {
    fn new(directories: Vec<PathBuf>, state: &Path) -> Self {
        let place = |file: &PathBuf| directories.iter().position(|directory| file.parent() == Some(directory));
        let files = manifest_backup::read(state);
        let known = files.into_iter().filter_map(|(file, objects)| Some(((place(&file)?, file), objects))).collect();
        Self {
            directories,
            known,
            state: state.to_owned(),
            inodes: Saved::open(Some(state), "directories.json"),
            logged: Vec::new(),
            generations: BTreeMap::new(),
        }
    }

    fn read(&mut self) -> Read {
        let mut errors = Vec::new();
        let mut files = BTreeMap::new();
        for (place, directory) in self.directories.clone().iter().enumerate() {
            let scan = read_directory(directory);
            errors.extend(self.unavailable(place, directory, &scan));
            errors.extend(scan.errors);
            files.extend(scan.files.into_iter().map(|(file, objects)| ((place, file), objects)));
        }
        let emptied = self.emptied(&files, &errors);
        errors.extend(emptied);
        self.keep_known(&mut files, &errors);
        errors.extend(self.drop_duplicates(&mut files));
        self.date(&mut files);
        self.known = files;
        let problems = self.log(&errors);
        let known = self.known.iter().map(|((_, file), objects)| (file, objects));
        manifest_backup::save(&self.state, known);
        Read { manifests: self.collect(errors.is_empty(), problems), values: self.values(&errors) }
    }

    /// Reports a directory that lost all its files and is another one than before: most likely the volume that was mounted
    /// there is not.
    fn unavailable(&mut self, place: usize, directory: &Path, scan: &Scan) -> Option<ManifestError> {
        let had_files = self.known.iter().any(|((of, _), objects)| *of == place && !objects.is_empty());
        let is_empty = scan.files.is_empty() && scan.errors.is_empty();
        let (inode, known) = (inode(directory), self.inodes.get(directory).cloned());
        if is_empty && had_files && known.is_some() && inode != known {
            let message = "is empty and not the directory of before, such as one whose volume is not mounted; its objects are \
                           kept. If they are to go, put an empty file into it, such as none.yaml";
            return Some(file_error(directory, message.to_owned()));
        }
        if let Some(inode) = inode.filter(|inode| scan.errors.is_empty() && Some(inode) != known.as_ref()) {
            self.inodes.insert(directory.to_owned(), inode);
            self.inodes.save();
        }
        None
    }

    /// Reports files that lost all their objects: most likely they are being written, or the disk is full.
    fn emptied(&self, files: &BTreeMap<Place, Vec<Manifest>>, errors: &[ManifestError]) -> Vec<ManifestError> {
        let reported = files_of(errors);
        let is_emptied = |(place, known): &(&Place, &Vec<Manifest>)| {
            !known.is_empty() && !reported.contains(&*place.1) && files.get(*place).is_some_and(Vec::is_empty)
        };
        let emptied = self.known.iter().filter(is_emptied);
        let message = "is empty; delete the file if its objects are to go, too";
        emptied.map(|((_, file), _)| file_error(file, message.to_owned())).collect()
    }

    /// Keeps objects whose file became unreadable: an error must not delete anything.
    fn keep_known(&self, files: &mut BTreeMap<Place, Vec<Manifest>>, errors: &[ManifestError]) {
        let broken = files_of(errors);
        for (place, known) in &self.known {
            if place.1.ancestors().any(|path| broken.contains(path)) {
                let now = files.entry(place.clone()).or_default();
                let is_lost = |known: &&Manifest| !now.iter().any(|n| n.object.identity() == known.object.identity());
                let lost: Vec<Manifest> = known.iter().filter(is_lost).cloned().collect();
                now.extend(lost);
            }
        }
    }

    /// Removes duplicates within a directory: the object that existed before wins, or else the first. The others are
    /// reported as errors.
    fn drop_duplicates(&self, files: &mut BTreeMap<Place, Vec<Manifest>>) -> Vec<ManifestError> {
        let objects = |files: &BTreeMap<Place, Vec<Manifest>>| -> BTreeSet<((usize, Identity), PathBuf)> {
            let of = |((directory, file), objects): (&Place, &Vec<Manifest>)| {
                let identities = objects.iter().map(|manifest| manifest.object.identity());
                identities.map(|identity| ((*directory, identity), file.clone())).collect::<Vec<_>>()
            };
            files.iter().flat_map(of).collect()
        };
        let (before, now) = (objects(&self.known), objects(files));
        let mut holders = BTreeMap::new();
        for (object, file) in before.intersection(&now).chain(&now) {
            holders.entry(object).or_insert(file);
        }
        let mut errors = Vec::new();
        for ((directory, file), objects) in files {
            objects.retain(|manifest| {
                let holder = holders.get(&(*directory, manifest.object.identity())).filter(|holder| **holder != file);
                errors.extend(holder.map(|holder| double(manifest, holder)));
                holder.is_none()
            });
        }
        errors
    }

    /// Gives Configurations without a time of creation, as files have none, that at which they were first read: the oldest has a name
    /// (rule 29). The backup keeps it.
    fn date(&self, files: &mut BTreeMap<Place, Vec<Manifest>>) {
        let dated = self.known.values().flatten().filter_map(|manifest| match &manifest.object {
            Object::Configuration(object) => {
                Some((manifest.object.identity(), object.metadata.creation_timestamp.clone()?))
            }
            _ => None,
        });
        let dated: BTreeMap<Identity, Time> = dated.collect();
        for manifest in files.values_mut().flatten() {
            let identity = manifest.object.identity();
            if let Object::Configuration(object) = &mut manifest.object {
                let first = || dated.get(&identity).cloned().unwrap_or(Time(Timestamp::now()));
                object.metadata.creation_timestamp.get_or_insert_with(first);
            }
        }
    }

    /// Logs errors, remarks and overrides that the last read did not have; returns the errors, with the objects that have them, and
    /// remarks.
    fn log(&mut self, errors: &[ManifestError]) -> Vec<String> {
        let owner = |error: &ManifestError| error.owner.as_ref().map(|key| format!(" (of {key})")).unwrap_or_default();
        let owned: Vec<String> = errors.iter().map(|error| format!("{error}{}", owner(error))).collect();
        let (errors, remarks, overrides) = (first(errors), first(&self.remarks()), first(&self.overrides()));
        let problems = [first(&owned), remarks.clone()].concat();
        let errors = errors.into_iter().map(|error| (Level::ERROR, error));
        let remarks = remarks.into_iter().map(|remark| (Level::WARN, remark));
        let overrides = overrides.into_iter().map(|message| (Level::INFO, message));
        let found: Vec<(Level, String)> = errors.chain(remarks).chain(overrides).collect();
        for (level, message) in found.iter().filter(|message| !self.logged.contains(message)) {
            match *level {
                Level::ERROR => error!("{message}"),
                Level::WARN => warn!("{message}"),
                _ => info!("{message}"),
            }
        }
        let has_errors = |logged: &[(Level, String)]| logged.iter().any(|(level, _)| *level == Level::ERROR);
        if has_errors(&self.logged) && !has_errors(&found) {
            info!("all manifests are readable again");
        }
        self.logged = found;
        problems
    }

    fn collect(&mut self, complete: bool, problems: Vec<String>) -> Manifests {
        let mut manifests = Manifests { complete, problems, ..Manifests::default() };
        for manifest in self.known.values().flatten() {
            match &manifest.object {
                Object::Configuration(object) => {
                    let configuration = number(&self.generations, local(configuration_to_model(object)));
                    manifests.configurations.insert(configuration.key.clone(), Arc::new(configuration));
                }
                Object::DiscoveryHandler(object) => {
                    let handler = HandlerObject::from(&**object).in_file(&manifest.file);
                    manifests.handlers.insert(manifest.object.identity().2, Arc::new(handler));
                }
                Object::Data(..) => {}
            }
        }
        self.generations = manifests.configurations.iter().map(|(key, c)| (key.clone(), (**c).clone())).collect();
        manifests
    }

    /// Returns what is accepted and has no effect here.
    fn remarks(&self) -> Vec<String> {
        let remark = |manifest: &Manifest| match &manifest.object {
            Object::Configuration(object) if wants_brokers(&object.spec) => Some(format!(
                "{}: Configuration '{}' has a brokerSpec or services: local mode runs no brokers; containers get the devices \
                 through the kubelet or CDI",
                manifest.file.display(),
                manifest.object.identity().2
            )),
            _ => None,
        };
        self.known.values().flatten().filter_map(remark).collect()
    }

    /// Returns the objects that override one of an earlier directory, such as a handler shipped with the program.
    fn overrides(&self) -> Vec<String> {
        let mut first = BTreeMap::new();
        let describe = |manifest: &Manifest| {
            let (kind, _, name) = manifest.object.identity();
            let file = manifest.file.display();
            let other = first.insert(manifest.object.identity(), manifest.file.clone())?;
            Some(format!("{kind} '{name}' of {file} overrides the one in {}", other.display()))
        };
        self.known.values().flatten().filter_map(describe).collect()
    }

    /// Returns the values; objects that only unreadable manifests define count as unreadable.
    fn values(&self, errors: &[ManifestError]) -> Values {
        let mut values = data::values(self.known.values().flatten());
        for error in errors {
            if let Some(object) = &error.object {
                values.entry(object.clone()).or_insert_with(|| Stored::Unreadable(error.to_string()));
            }
        }
        values
    }
}

/// Returns the files, or directories, of errors.
fn files_of(errors: &[ManifestError]) -> BTreeSet<&Path> {
    errors.iter().map(|error| &*error.file).collect()
}

/// Returns the first messages, and how many there are beside them.
fn first(messages: &[impl ToString]) -> Vec<String> {
    let more = messages.len().saturating_sub(MAX_SHOWN);
    let more = (more > 0).then(|| format!("{more} more messages of this kind about manifests"));
    messages.iter().take(MAX_SHOWN).map(ToString::to_string).chain(more).collect()
}

/// Returns the device number and the inode of a directory.
fn inode(directory: &Path) -> Option<String> {
    let metadata = fs::metadata(directory).ok()?;
    Some(format!("{}:{}", metadata.dev(), metadata.ino()))
}

fn wants_brokers(spec: &ConfigurationSpec) -> bool {
    spec.broker_spec.is_some() || spec.instance_service_spec.is_some() || spec.configuration_service_spec.is_some()
}

fn double(manifest: &Manifest, holder: &Path) -> ManifestError {
    let (kind, _, name) = manifest.object.identity();
    let message = format!("{kind} '{name}' already exists in {}; delete one, or rename it", holder.display());
    manifest.locate(FieldError::new("/metadata/name", message))
}

/// Adds a UID derived from the key, since files have none. It is stable across restarts.
fn local(mut configuration: Configuration) -> Configuration {
    let input = HashInput::new(&configuration.key.to_string(), true, "");
    configuration.uid = input.identity().as_str().to_owned();
    configuration
}

/// Sets the generation, which counts changes as the API server does.
fn number(known: &BTreeMap<Key, Configuration>, mut now: Configuration) -> Configuration {
    let before = known.get(&now.key);
    now.generation = before.map_or(1, |before| before.generation);
    if before.is_some_and(|before| *before != now) {
        now.generation += 1;
    }
    now
}

#[cfg(test)]
mod tests;
