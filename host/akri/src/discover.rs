//! `akri discover`: one round on this machine, without a cluster.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use akri_agent::cluster::local::read_directory;
use akri_agent::cluster::{HandlerObject, Manifests};
use akri_agent::discovery::admission::admit;
use akri_agent::discovery::registry::{Handler, Handlers, Registry};
use akri_agent::discovery::rounds::call;
use akri_agent::uevent::Uevents;
use akri_api::manifest::{self, Manifest, Object};
use akri_api::{HandlerRules, configuration_to_model};
use akri_model::configuration::Configuration;
use akri_model::device::{Device, DeviceSet};
use akri_model::discovery::RoundError;
use akri_model::names::{HashInput, HashLength, instance_name, resource_name};
use akri_sandbox::{Host, HostConfig};
use anyhow::{Context as _, anyhow, bail};
use indicatif::ProgressBar;
use serde::Serialize;
use tokio::sync::watch;

use crate::cli::{DiscoverArgs, node_name};
use crate::get::telling;
use crate::output::{plain, print, table};

/// A device that was found, and what it would be called.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Found {
    configuration: String,
    /// Absent if the Configuration's name is too long.
    resource: Option<String>,
    shared: bool,
    device: Device,
}

/// Runs one round for each Configuration of the file. Fails if one of them failed.
pub(crate) async fn run(args: DiscoverArgs) -> anyhow::Result<ExitCode> {
    let node = node_name(args.node_name.clone())?;
    let manifests = read(&args.file)?;
    let handlers = load(&args, &manifests).await?;
    let mut found = Vec::new();
    let mut failed = false;
    for (manifest, configuration) in configurations(&manifests) {
        match round(&configuration, manifest, &handlers, args.handler.is_some()).await {
            Ok((handler, set)) => found.extend(name(&configuration, &handler, &node, set)),
            Err(error) => {
                eprintln!("error: {error:#}");
                failed = true;
            }
        }
    }
    print(&found, args.output, || found_table(&found))?;
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn read(file: &Path) -> anyhow::Result<Vec<Manifest>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read '{}'", file.display()))?;
    let (manifests, errors) = manifest::parse(file, &text);
    if !errors.is_empty() {
        let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
        bail!("{}", lines.join("\nerror: "));
    }
    if configurations(&manifests).next().is_none() {
        bail!("'{}' holds no Configuration", file.display());
    }
    Ok(manifests)
}

fn configurations(manifests: &[Manifest]) -> impl Iterator<Item = (&Manifest, Configuration)> {
    manifests.iter().filter_map(|manifest| match &manifest.object {
        Object::Configuration(object) => Some((manifest, configuration_to_model(object))),
        Object::DiscoveryHandler(_) => None,
    })
}

/// Loads the components: that of `--handler` alone, else all of the component directory and of the file.
async fn load(args: &DiscoverArgs, manifests: &[Manifest]) -> anyhow::Result<Arc<Handlers>> {
    let mut objects = BTreeMap::new();
    let directory = match &args.handler {
        Some(component) => {
            let file = component.file_name().and_then(|name| name.to_str()).context("--handler names no file")?;
            let rules = rules_for(file, manifests);
            objects
                .insert("--handler".to_owned(), Arc::new(HandlerObject { file: file.to_owned(), digest: None, rules }));
            component.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned()
        }
        None => {
            let scan = read_directory(&args.components);
            scan.errors.iter().for_each(|error| eprintln!("warning: {error}"));
            objects.extend(handler_objects(scan.files.values().flatten()));
            objects.extend(handler_objects(manifests.iter()));
            args.components.clone()
        }
    };
    let spinner = ProgressBar::new_spinner().with_message(format!("loading components of {}", directory.display()));
    spinner.enable_steady_tick(std::time::Duration::from_millis(100));
    let handlers = settled(args, directory, objects).await;
    spinner.finish_and_clear();
    handlers
}

async fn settled(
    args: &DiscoverArgs,
    directory: PathBuf,
    handlers: BTreeMap<String, Arc<HandlerObject>>,
) -> anyhow::Result<Arc<Handlers>> {
    let config =
        HostConfig { cache_dir: cache_dir(), sysfs: args.host.sysfs.clone(), udev_data: args.host.udev_data.clone() };
    let host = Host::new(config).map_err(|error| anyhow!("cannot start the component host: {error}"))?;
    let (_sender, manifests) = watch::channel(Arc::new(Manifests { handlers, complete: true, ..Manifests::default() }));
    let registry = Registry::start(host, vec![directory], manifests, Uevents::default());
    let mut handlers = registry.handlers();
    let settled = handlers.wait_for(|handlers| handlers.settled).await.context("no handler was loaded")?;
    Ok(Arc::clone(&settled))
}

/// Compiled components are kept for the next time, where the user's caches are.
fn cache_dir() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let caches = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or(home)?;
    std::fs::create_dir_all(&caches).ok().map(|()| caches.join("akri"))
}

fn handler_objects<'a>(
    manifests: impl Iterator<Item = &'a Manifest>,
) -> impl Iterator<Item = (String, Arc<HandlerObject>)> {
    manifests.filter_map(|manifest| match &manifest.object {
        Object::DiscoveryHandler(object) => {
            Some((manifest.object.identity().2, Arc::new(HandlerObject::from(&**object))))
        }
        Object::Configuration(_) => None,
    })
}

/// What a DiscoveryHandler of the file grants to a component.
fn rules_for(file: &str, manifests: &[Manifest]) -> HandlerRules {
    let object = handler_objects(manifests.iter()).find(|(_, object)| object.file == file);
    object
        .map_or_else(|| HandlerRules::from(&akri_api::DiscoveryHandler::default()), |(_, object)| object.rules.clone())
}

async fn round(
    configuration: &Configuration,
    manifest: &Manifest,
    handlers: &Handlers,
    any: bool,
) -> anyhow::Result<(Arc<Handler>, DeviceSet)> {
    let handler = if any { handlers.ready.values().next() } else { handlers.ready.get(&configuration.handler) };
    let Some(handler) = handler else { bail!("{}: {}", configuration.key, missing(configuration, handlers)) };
    let call = call(configuration, handler);
    let set = match handler.component.validate(call.clone()).await {
        Ok(_) => handler.component.discover(call).await,
        Err(error) => Err(error),
    };
    let set = set.map_err(|error| explained(error, configuration, manifest))?;
    let set = admit(set, &handler.rules.grants, &handler.rules.limits);
    for note in &set.notes {
        eprintln!("warning: {}: {} ({})", configuration.key, plain(&note.message), plain(&note.reason));
    }
    Ok((Arc::clone(handler), set))
}

fn missing(configuration: &Configuration, handlers: &Handlers) -> String {
    let ready: Vec<&str> = handlers.ready.keys().map(String::as_str).collect();
    let refused: Vec<String> = handlers.refused.iter().map(|(object, why)| format!("\n  {object}: {why}")).collect();
    format!(
        "no discovery handler '{}' among those of --components: {}{}",
        configuration.handler,
        if ready.is_empty() { "there are none".to_owned() } else { ready.join(", ") },
        refused.concat()
    )
}

/// A handler's problems, each with file, line and field.
fn explained(error: RoundError, configuration: &Configuration, manifest: &Manifest) -> anyhow::Error {
    match error {
        RoundError::InvalidDetails(problems) => {
            let located = manifest.locate_problems(&configuration.details, &problems);
            let lines: Vec<String> = located.iter().map(ToString::to_string).collect();
            anyhow!("{}", lines.join("\nerror: "))
        }
        error => anyhow!("{}: {error}", configuration.key),
    }
}

fn name(configuration: &Configuration, handler: &Handler, node: &str, set: DeviceSet) -> Vec<Found> {
    let found = |device: Device| {
        let hash = HashInput::new(&device.id, handler.shared, node).hash(HashLength::Short);
        Found {
            configuration: configuration.key.to_string(),
            resource: instance_name(&configuration.key.name, &hash).map(|name| resource_name(&name)),
            shared: handler.shared,
            device: Device { properties: configuration.broker_view(&device.properties), ..device },
        }
    };
    set.devices.into_iter().map(found).collect()
}

fn found_table(found: &[Found]) -> String {
    if found.is_empty() {
        return "no devices\n".to_owned();
    }
    let row = |found: &Found| {
        let resource = found.resource.clone().unwrap_or_else(|| "(name too long)".to_owned());
        vec![resource, found.configuration.clone(), telling(&found.device.properties), plain(&found.device.id)]
    };
    let rows: Vec<Vec<String>> = found.iter().map(row).collect();
    table(&["RESOURCE", "CONFIGURATION", "DEVICE", "ID"], &rows)
}
