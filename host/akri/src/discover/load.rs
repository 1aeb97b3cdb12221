//! Reads the file and loads the components.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use akri_api::data;
use akri_api::manifest::{Manifest, Object};
use akri_api::{ComponentSource, HandlerRules};
use akri_cli::args::node_name;
use akri_cli::component::read;
use akri_cli::output::print_message;
use akri_cli::program::{cache_dir, component_host};
use akri_cli::registry::user_credentials;
use akri_cli::subject::{self, Subject, handler_of};
use akri_cluster::local::read_directory;
use akri_cluster::{HandlerObject, Manifests};
use akri_discovery::images::{ImageSettings, Images};
use akri_discovery::registry::{Handlers, Registry};
use akri_model::names::{Key, resource_name};
use akri_model::resolve::Values;
use akri_node::sysfs::Sysfs;
use akri_node::uevent::Uevents;
use akri_oci::{Credentials, digest_of};
use anyhow::{Context as _, bail, ensure};
use indicatif::ProgressBar;
use kube::ResourceExt as _;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::cli::DiscoverArgs;

/// Time without a result after which a pipe is told what is being loaded; a terminal shows it at once.
const PROGRESS_AFTER: Duration = Duration::from_secs(2);

type Sender<T> = watch::Sender<Arc<T>>;

/// The dependencies of rounds. Handlers are reloaded when their files change while this lives.
pub(super) struct Loaded {
    pub(super) node: String,
    pub(super) subjects: Vec<Subject>,
    pub(super) handlers: watch::Receiver<Arc<Handlers>>,
    pub(super) uevents: Uevents,
    /// The names of all handlers, those that no Configuration names included: these are not loaded.
    pub(super) known: Vec<String>,
    pub(super) values: watch::Receiver<Arc<Values>>,
    pub(super) sysfs: Sysfs,
    _alive: (Registry, Sender<Manifests>, Sender<Values>),
}

/// Reads the file, and waits until all handlers are loaded or refused.
pub(super) async fn load(args: &DiscoverArgs) -> anyhow::Result<Loaded> {
    let node = node_name(args.node_name.clone())?;
    let manifests = subject::read(&args.file)?;
    let mut subjects: Vec<Subject> = manifests.iter().filter_map(Subject::of).collect();
    ensure!(!subjects.is_empty(), "'{}' holds no Configuration", args.file.display());
    let (directory, mut objects) = components(args, &manifests)?;
    let known: Vec<String> = objects.values().filter_map(|object| object.name.clone()).collect();
    let is_wanted = |name: &String| subjects.iter().any(|subject| subject.configuration.handler == *name);
    objects.retain(|_, object| object.name.as_ref().is_none_or(is_wanted));
    let loading =
        format!("loading {} of {}", objects.keys().cloned().collect::<Vec<_>>().join(", "), directory.display());
    let host = component_host(Some(&args.host))?;
    let uevents = if args.watch { Uevents::receive(&args.host.udev_data) } else { Uevents::default() };
    let names_image = objects.values().any(|object| object.source.image().is_some());
    let (values_sender, values) = watch::channel(Arc::new(data::values(&manifests)));
    let all = Manifests { handlers: objects, complete: true, ..Manifests::default() };
    let (manifests_sender, receiver) = watch::channel(Arc::new(all));
    let spinner = ProgressBar::new_spinner().with_message(loading.clone());
    let settings = ImageSettings {
        directory: cache_dir().map(|caches| caches.join("images")),
        registries: args.registry.settings()?,
        credentials: if names_image { user_credentials()? } else { Credentials::default() },
    };
    let images = Images::new(settings, "default", values.clone());
    let registry = Registry::start(host, vec![directory], images, receiver, None);
    let mut handlers = registry.handlers.clone();
    spinner.enable_steady_tick(Duration::from_millis(100));
    let settled = tokio::select! {
        settled = handlers.wait_for(|handlers| handlers.settled) => settled.context("no handler was loaded")?.clone(),
        () = report_progress(&spinner, &loading) => bail!("no handler was loaded"),
    };
    spinner.finish_and_clear();
    if let (Some(_), Some(only)) = (&args.handler, settled.ready.keys().next()) {
        subjects.iter_mut().for_each(|subject| Arc::make_mut(&mut subject.configuration).handler.clone_from(only));
    }
    let keys: Vec<&Key> = subjects.iter().map(|subject| &subject.configuration.key).collect();
    contested(&keys).iter().for_each(|warning| print_message(format!("warning: {warning}")));
    let _alive = (registry, manifests_sender, values_sender);
    let sysfs = Sysfs { root: args.host.sysfs.clone(), udev_data: args.host.udev_data.clone() };
    Ok(Loaded { node, subjects, handlers, uevents, known, values, sysfs, _alive })
}

/// Returns a warning for each Configuration whose resource is that of an earlier one: resources have no namespaces.
fn contested(keys: &[&Key]) -> Vec<String> {
    let other = |(place, key): (usize, &&Key)| {
        let first = keys.iter().take(place).find(|first| first.name == key.name)?;
        let resource = resource_name(&key.name);
        Some(format!("{key}: {resource} is the resource of {first}, too, and an agent serves one of them; rename one"))
    };
    keys.iter().enumerate().filter_map(other).collect()
}

/// Says on a pipe, which sees no spinner, what takes long. It never ends.
async fn report_progress(spinner: &ProgressBar, loading: &str) {
    sleep(PROGRESS_AFTER).await;
    if spinner.is_hidden() {
        print_message(format!("{loading}; a component is compiled once"));
    }
    std::future::pending().await
}

/// Returns the component directory and the handler objects: of `--handler` alone, or of the component directory and the
/// file.
fn components(args: &DiscoverArgs, manifests: &[Manifest]) -> anyhow::Result<(PathBuf, Objects)> {
    let Some(component) = &args.handler else {
        let scan = read_directory(&args.components);
        scan.errors.iter().for_each(|error| print_message(format!("warning: {error}")));
        let object = |manifest: &Manifest| match &manifest.object {
            Object::DiscoveryHandler(object) => {
                Some((object.name_any(), Arc::new(HandlerObject::from(&**object).in_file(&manifest.file))))
            }
            Object::Configuration(_) | Object::Data(..) => None,
        };
        let objects = scan.files.values().flatten().chain(manifests).filter_map(object);
        return Ok((args.components.clone(), objects.collect()));
    };
    let file = component.file_name().and_then(|name| name.to_str()).context("--handler names no file")?;
    let digest = read(component).map(|bytes| digest_of(&bytes).hex().to_owned()).unwrap_or_default();
    let rules = HandlerRules::from(&handler_of(manifests, file, &digest).cloned().unwrap_or_default());
    let source = ComponentSource::File(file.to_owned());
    let object = HandlerObject { name: None, source, digest: None, rules, generation: (String::new(), 0) };
    let directory = component.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((directory.to_owned(), BTreeMap::from([("--handler".to_owned(), Arc::new(object))])))
}

/// DiscoveryHandler objects by name.
type Objects = BTreeMap<String, Arc<HandlerObject>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_that_two_configurations_want_are_named() {
        let (a, b, other) = (Key::new("default", "a"), Key::new("default", "b"), Key::new("other", "b"));
        assert!(contested(&[&a, &b]).is_empty());
        let warnings = contested(&[&a, &b, &other]);
        let expected =
            "other/b: akri.sh/b is the resource of default/b, too, and an agent serves one of them; rename one";
        assert_eq!(warnings, [expected]);
    }
}
