//! Components that come from registries: pulled once, kept by digest, and verified each time they are read (rule 74, rule 75).
//! The agent uses a kept component while the registry is away.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use akri_api::ComponentSource;
use akri_model::image::{ImageSource, PinnedImage};
use akri_model::names::Key;
use akri_model::resolve::{ReferenceKind, Stored, Values};
use akri_model::signature::TrustedKey;
use akri_node::replace::replace;
use akri_oci::{
    Client, Credentials, MAX_COMPONENT, Progress, Pulled, RegistryError, Signature, check_manifest, digest_of, verify,
};
use tokio::sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tracing::{info, warn};

use crate::component_file::ComponentFile;
use crate::registry::Refused;

/// Limit on all kept components, in bytes.
const MAX_KEPT: u64 = 1 << 30;

/// Limit on all components that are being pulled, in bytes: two of the largest.
const MAX_PULLED: u64 = 2 * MAX_COMPONENT;

/// Longest time until pull secrets are read after an object named them.
const SECRETS_WAIT: Duration = Duration::from_secs(3);

/// The key of a Secret of type `kubernetes.io/dockerconfigjson`.
const SECRET_KEY: &str = ".dockerconfigjson";

/// Ends of the names of kept files: the component, its manifest, its signatures. A manifest is written last.
const COMPONENT: &str = "wasm";
const MANIFEST: &str = "manifest";
const SIGNATURES: &str = "signatures";

/// The pull secrets of an image, as far as they are known.
pub(crate) type PullSecrets = Vec<Option<Stored>>;

/// The registries of images, and their cache. Clones share it.
#[derive(Clone)]
pub struct Images(Arc<Shared>);

struct Shared {
    settings: ImageSettings,
    /// The namespace of pull secrets.
    namespace: String,
    values: watch::Receiver<Arc<Values>>,
    /// A lock for each registry, held while an image is pulled from it: a slow one delays its own images only (rule 136).
    pulling: Mutex<BTreeMap<String, Arc<Mutex<()>>>>,
    /// The bytes that may still be pulled. A component has its own until it is kept, so that all in memory are bounded.
    room: Arc<Semaphore>,
    /// Held while files are written.
    writing: Arc<Mutex<()>>,
}

/// Settings of images.
#[derive(Debug, Clone, Default)]
pub struct ImageSettings {
    /// The directory for components, if they are kept. Nobody else may write to it.
    pub directory: Option<PathBuf>,
    /// The settings of connections to registries.
    pub registries: akri_oci::Settings,
    /// Credentials beside those of pull secrets.
    pub credentials: Credentials,
}

impl From<RegistryError> for Refused {
    fn from(error: RegistryError) -> Self {
        let reason = match error {
            RegistryError::Signature(_) => "SignatureInvalid",
            RegistryError::Mismatch(_) => "DigestMismatch",
            RegistryError::Manifest(_) => "Invalid",
            _ => "PullFailed",
        };
        Self::temporary(reason, error.to_string())
    }
}

impl Images {
    /// Images with pull secrets from these values.
    pub fn new(settings: ImageSettings, namespace: &str, values: watch::Receiver<Arc<Values>>) -> Self {
        let namespace = namespace.to_owned();
        let room = Arc::new(Semaphore::new(usize::try_from(MAX_PULLED).unwrap_or(usize::MAX)));
        let (pulling, writing) = Default::default();
        Self(Arc::new(Shared { settings, namespace, values, pulling, room, writing }))
    }

    /// Returns the values, of which a change may make pull secrets usable.
    pub(crate) fn values(&self) -> watch::Receiver<Arc<Values>> {
        self.0.values.clone()
    }

    /// Returns what is known of the pull secrets of a component now.
    pub(crate) fn pull_secrets(&self, source: &ComponentSource) -> PullSecrets {
        let values = self.0.values.borrow();
        source
            .image()
            .map_or_else(Vec::new, |source| self.keys_of(source).map(|key| values.get(&key).cloned()).collect())
    }

    /// Returns the names of the pull secrets of an image.
    fn keys_of(&self, source: &ImageSource) -> impl Iterator<Item = (ReferenceKind, Key)> {
        let key = |name: &String| (ReferenceKind::Secret, Key::new(self.0.namespace.as_str(), name.as_str()));
        source.pull_secrets.iter().map(key)
    }

    /// Returns the component of an image: as it is kept, or else from the registry. The signature is checked first.
    pub(crate) async fn read(&self, source: &ImageSource, progress: &Progress) -> Result<ComponentFile, Refused> {
        self.check_signature(source).await?;
        let image = &source.image;
        if let Some(bytes) = self.kept(image).await {
            return Ok(ComponentFile::new(image.to_string().into(), bytes));
        }
        let credentials = self.credentials(source).await?;
        let client = self.client()?;
        let pulling = self.lock_registry(image.repository.registry()).await;
        info!(%image, "pulling the component");
        let pulled = client.pull(image, &credentials, progress, |layer| self.reserve(layer.size)).await?;
        let (Pulled { manifest, component }, room) = pulled;
        info!(%image, bytes = component.len(), "component pulled");
        let component = Arc::new(component);
        let files = [(COMPONENT, Arc::clone(&component)), (MANIFEST, Arc::new(manifest))];
        self.keep(image, files, (pulling, room)).await;
        Ok(ComponentFile::new(image.to_string().into(), Arc::unwrap_or_clone(component)))
    }

    /// Waits until no other image is pulled from a registry.
    async fn lock_registry(&self, registry: &str) -> OwnedMutexGuard<()> {
        let lock = {
            let mut pulling = self.0.pulling.lock().await;
            pulling.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(pulling.entry(registry.to_owned()).or_default())
        };
        lock.lock_owned().await
    }

    /// Waits until a component of that size may be in memory, and checks that there is room to keep it.
    async fn reserve(&self, size: u64) -> Result<Option<OwnedSemaphorePermit>, Refused> {
        let bytes = u32::try_from(size.min(MAX_PULLED)).unwrap_or(u32::MAX);
        let reserved = Arc::clone(&self.0.room).acquire_many_owned(bytes).await.ok();
        let others = MAX_PULLED.saturating_sub(size + self.0.room.available_permits() as u64);
        self.check_room(size, others).map(|()| reserved)
    }

    /// Accepts the image if one of its kept or published signatures is valid for one of the keys.
    async fn check_signature(&self, source: &ImageSource) -> Result<(), Refused> {
        let ImageSource { image, keys, .. } = source;
        if keys.is_empty() || self.is_signed(image, keys) {
            return Ok(());
        }
        let credentials = self.credentials(source).await?;
        let signatures = self.client()?.signatures(image, keys, &credentials).await?;
        if let Ok(bytes) = serde_json::to_vec(&signatures) {
            self.keep(image, [(SIGNATURES, Arc::new(bytes))], ()).await;
        }
        Ok(())
    }

    /// Returns whether a kept signature of an image is valid for one of the keys.
    pub(crate) fn is_signed(&self, image: &PinnedImage, keys: &[TrustedKey]) -> bool {
        let Some(directory) = &self.0.settings.directory else { return false };
        let kept = std::fs::read(path(directory, image, SIGNATURES)).unwrap_or_default();
        let kept: Vec<Signature> = serde_json::from_slice(&kept).unwrap_or_default();
        verify(&kept, &image.digest, keys).is_some()
    }

    /// Reads the component of an image, if it is kept and undamaged.
    async fn kept(&self, image: &PinnedImage) -> Option<Vec<u8>> {
        let manifest = self.content(image, MANIFEST).await.filter(|manifest| digest_of(manifest) == image.digest)?;
        let layer = check_manifest(&manifest).ok()?;
        let component = self.content(image, COMPONENT).await?;
        let is_complete = component.len() as u64 == layer.size && digest_of(&component) == layer.digest;
        if !is_complete {
            warn!(%image, "the kept component is damaged; it is pulled anew");
        }
        is_complete.then_some(component)
    }

    async fn content(&self, image: &PinnedImage, end: &str) -> Option<Vec<u8>> {
        let directory = self.0.settings.directory.as_ref()?;
        tokio::fs::read(path(directory, image, end)).await.ok()
    }

    /// Keeps files of an image. Without them it works until the agent ends.
    async fn keep<const N: usize>(
        &self,
        image: &PinnedImage,
        files: [(&str, Arc<Vec<u8>>); N],
        held: impl Send + 'static,
    ) {
        let Some(directory) = &self.0.settings.directory else { return };
        let files = files.map(|(end, bytes)| (path(directory, image, end), bytes));
        let writing = Arc::clone(&self.0.writing).lock_owned().await;
        let write = move || {
            let _held = (writing, held); // it goes on when the load is aborted
            files.iter().try_for_each(|(path, bytes)| replace(path, bytes, true))
        };
        let written = tokio::task::spawn_blocking(write).await;
        if let Err(error) = written.map_err(io::Error::other).and_then(|written| written) {
            warn!(%image, "the component can't be kept, and is pulled again at the next start: {error}");
        }
    }

    /// Checks that a component can be kept, beside those that are being pulled.
    fn check_room(&self, wanted: u64, pulled: u64) -> Result<(), Refused> {
        let Some(directory) = &self.0.settings.directory else { return Ok(()) };
        let kept = pulled + files(directory).map(|(_, bytes)| bytes).sum::<u64>();
        if kept + wanted <= MAX_KEPT {
            return Ok(());
        }
        let directory = directory.display();
        let message = format!(
            "components of other DiscoveryHandlers take {kept} of {MAX_KEPT} bytes in '{directory}', which leaves no room for \
             {wanted}"
        );
        Err(Refused::temporary("NoRoom", message))
    }

    /// Removes what is kept of other images than these.
    pub(crate) fn retain(&self, images: &BTreeSet<&PinnedImage>) {
        let Some(directory) = &self.0.settings.directory else { return };
        let wanted: BTreeSet<&str> = images.iter().map(|image| image.digest.hex()).collect();
        let digest = |path: &Path| path.file_name()?.to_str()?.split('.').next().map(str::to_owned);
        let is_wanted = |path: &Path| digest(path).is_some_and(|digest| wanted.contains(&*digest));
        for (path, _) in files(directory).filter(|(path, _)| !is_wanted(path)) {
            if let Err(error) = std::fs::remove_file(&path) {
                warn!("cannot remove '{}', which no DiscoveryHandler uses: {error}", path.display());
            }
        }
    }

    /// Returns a client that trusts whom the node trusts by now.
    fn client(&self) -> Result<Client, RegistryError> {
        Client::new(&self.0.settings.registries)
    }

    async fn credentials(&self, source: &ImageSource) -> Result<Credentials, Refused> {
        let secrets: Vec<(ReferenceKind, Key)> = self.keys_of(source).collect();
        let mut values = self.0.values.clone();
        let is_read =
            |values: &Arc<Values>| secrets.iter().all(|secret| matches!(values.get(secret), Some(Stored::Data(_))));
        let _ = timeout(SECRETS_WAIT, values.wait_for(is_read)).await; // what is missing then is told below
        let values = values.borrow().clone();
        let mut credentials = Credentials::default();
        for secret in &secrets {
            credentials.extend(read_secret(&values, secret)?);
        }
        credentials.extend(self.0.settings.credentials.clone());
        Ok(credentials)
    }
}

fn read_secret(values: &Values, secret: &(ReferenceKind, Key)) -> Result<Credentials, Refused> {
    let refused = |why: &str| Refused::temporary("PullSecret", format!("pull secret {}{why}", secret.1));
    let data = match values.get(secret) {
        None => return Err(refused(" does not exist")),
        Some(Stored::Unreadable(why)) => return Err(refused(&format!(" can't be read: {why}"))),
        Some(Stored::Data(data)) => data,
    };
    let json = data.get(SECRET_KEY).ok_or_else(|| refused(&format!(" has no key '{SECRET_KEY}'")))?;
    Credentials::parse(json.reveal()).map_err(|reason| refused(&format!(": its {SECRET_KEY} {reason}")))
}

fn path(directory: &Path, image: &PinnedImage, end: &str) -> PathBuf {
    directory.join(format!("{}.{end}", image.digest.hex()))
}

/// Returns the files of a directory with their sizes.
fn files(directory: &Path) -> impl Iterator<Item = (PathBuf, u64)> + use<> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some((entry.path(), entry.metadata().ok().filter(std::fs::Metadata::is_file)?.len())))
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use akri_model::property::Secret;
    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;

    fn images(directory: &Path, values: Values) -> Images {
        let settings = ImageSettings { directory: Some(directory.to_owned()), ..ImageSettings::default() };
        Images::new(settings, "akri", watch::channel(Arc::new(values)).1)
    }

    fn image(digest: char) -> PinnedImage {
        format!("127.0.0.1:1/a@sha256:{}", digest.to_string().repeat(64)).parse().unwrap()
    }

    #[tokio::test] // rule 74
    async fn unused_images_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let images = images(directory.path(), Values::default());
        for digest in ['a', 'b'] {
            let files = [COMPONENT, MANIFEST, SIGNATURES].map(|end| (end, Arc::new(b"x".to_vec())));
            images.keep(&image(digest), files, ()).await;
        }
        std::fs::write(directory.path().join(format!("{}.wasm.new", "b".repeat(64))), "x").unwrap();
        images.retain(&BTreeSet::from([&image('a')]));
        let names: BTreeSet<String> =
            files(directory.path()).map(|(path, _)| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
        let expected = [COMPONENT, MANIFEST, SIGNATURES].map(|end| format!("{}.{end}", "a".repeat(64)));
        assert_eq!(names, BTreeSet::from(expected));
        assert_eq!(images.kept(&image('a')).await, None, "another content than the digest's");
    }

    /// A write that was begun goes on when its load is aborted: the next one has to wait for it.
    #[tokio::test] // rule 74
    async fn aborted_load_holds_the_lock_until_its_write_ends() {
        let directory = tempfile::tempdir().unwrap();
        let images = images(directory.path(), Values::default());
        let pipe = path(directory.path(), &image('a'), "wasm.new");
        mkfifoat(CWD, &pipe, Mode::RUSR | Mode::WUSR).unwrap(); // its writer waits
        let (keeping, file) = (images.clone(), [(COMPONENT, Arc::new(b"c".to_vec()))]);
        let load = tokio::spawn(async move { keeping.keep(&image('a'), file, ()).await });
        while images.0.writing.try_lock().is_ok() {
            tokio::task::yield_now().await;
        }
        load.abort();
        assert!(load.await.unwrap_err().is_cancelled());
        assert!(images.0.writing.try_lock().is_err());
        assert_eq!(std::fs::read(&pipe).unwrap(), b"c");
        drop(images.0.writing.lock().await);
    }

    #[test] // rule 74
    fn kept_images_are_bounded_in_all() {
        let directory = tempfile::tempdir().unwrap();
        let file = std::fs::File::create(directory.path().join("a.wasm")).unwrap();
        file.set_len(MAX_KEPT - 10).unwrap();
        let images = images(directory.path(), Values::default());
        assert!(images.check_room(10, 0).is_ok());
        assert_eq!(images.check_room(11, 0).unwrap_err().reason, "NoRoom");
        assert_eq!(images.check_room(10, 1).unwrap_err().reason, "NoRoom", "beside others that are pulled");
    }

    /// Each pull alone could leave the bound on all of them.
    #[tokio::test] // rule 74
    async fn images_in_memory_are_bounded_in_all() {
        let directory = tempfile::tempdir().unwrap();
        let images = images(directory.path(), Values::default());
        let [first, second] = [images.reserve(MAX_COMPONENT).await, images.reserve(MAX_COMPONENT).await];
        let mut third = pin!(images.reserve(1));
        assert!(timeout(Duration::from_millis(100), &mut third).await.is_err());
        drop(first);
        assert!(second.is_ok() && third.await.is_ok());
    }

    #[tokio::test] // rule 136
    async fn slow_registry_delays_its_own_images_only() {
        let directory = tempfile::tempdir().unwrap();
        let images = images(directory.path(), Values::default());
        let pull = async |registry: &str| {
            let image = format!("{registry}/a@sha256:{}", "a".repeat(64)).parse().unwrap();
            let source = ImageSource { image, pull_secrets: vec![], keys: vec![] };
            images.read(&source, &Progress::default()).await.err().map(|error| error.reason)
        };
        let slow = images.lock_registry("127.0.0.1:1").await;
        let mut same = pin!(pull("127.0.0.1:1"));
        assert!(timeout(Duration::from_millis(300), &mut same).await.is_err());
        assert_eq!(pull("127.0.0.1:2").await, Some("PullFailed"));
        drop(slow);
        assert_eq!(same.await, Some("PullFailed"));
        drop(images.lock_registry("127.0.0.1:2").await);
        assert_eq!(images.0.pulling.lock().await.len(), 1, "registries that nobody waits for are forgotten");
    }

    #[test] // rule 74
    fn unusable_pull_secrets_are_named() {
        let secret = |json: &str| Stored::Data([(SECRET_KEY.to_owned(), Secret::new(json.into()))].into());
        let values = [
            ("akri", "good", secret(r#"{"auths": {}}"#)),
            ("akri", "damaged", secret("word")),
            ("akri", "other", Stored::Data([("password".to_owned(), Secret::new("x".into()))].into())),
            ("akri", "forbidden", Stored::Unreadable("forbidden".to_owned())),
            ("default", "elsewhere", secret(r#"{"auths": {}}"#)),
        ];
        let values =
            values.map(|(namespace, name, stored)| ((ReferenceKind::Secret, Key::new(namespace, name)), stored)).into();
        for (name, expected) in [
            ("good", None),
            ("damaged", Some("pull secret akri/damaged: its .dockerconfigjson is not a Docker configuration")),
            ("other", Some("pull secret akri/other has no key '.dockerconfigjson'")),
            ("forbidden", Some("pull secret akri/forbidden can't be read: forbidden")),
            ("elsewhere", Some("pull secret akri/elsewhere does not exist")),
        ] {
            let error =
                read_secret(&values, &(ReferenceKind::Secret, Key::new("akri", name))).err().map(|error| error.message);
            let is_expected =
                error.as_deref().zip(expected).is_none_or(|(error, expected)| error.starts_with(expected));
            assert!(error.is_some() == expected.is_some() && is_expected, "{error:?}");
            assert!(!error.unwrap_or_default().contains("word"));
        }
    }
}
