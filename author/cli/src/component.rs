//! Loading components, as an agent does: within `limits.compile` of their DiscoveryHandler.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use akri_api::manifest::Manifest;
use akri_api::{DiscoveryHandler, HandlerRules};
use akri_cassette::taping_host;
use akri_cli::args::HostArgs;
use akri_cli::component::read;
use akri_cli::output::{plain, print_message};
use akri_cli::program::{OWN_PROGRAM, cache_dir, component_host};
use akri_engine::{LocalComponent, LocalHostConfig};
use akri_model::grant::{CompileLimits, Isolation};
use akri_oci::digest_of;
use akri_sandbox::{Component, Host, LoadError, Platform, precompile};
use anyhow::{Context as _, anyhow};

use crate::rules::{handler_object, rules};

/// Limits on compiling where no agent's count: generous, since a person waits for it.
pub(crate) const MAX_COMPILE_LIMITS: CompileLimits =
    CompileLimits { memory_bytes: 2 << 30, time: Duration::from_secs(300) };
/// The line of a DiscoveryHandler's spec with which agents compile a component that holds an interpreter.
pub(crate) const LARGER_LIMITS: &str = "limits: {compile: {memory: 1Gi, time: 3m}}";

/// Returns these limits.
pub(crate) fn larger_limits() -> akri_api::limits::CompileLimits {
    akri_api::limits::CompileLimits { memory: Some("1Gi".to_owned()), time: Some("3m".to_owned()) }
}

/// Loads a component into this process, for rounds that are recorded or played. Without arguments it can't read devices.
pub(crate) async fn load_taping(path: &Path, host: Option<&HostArgs>) -> anyhow::Result<LocalComponent> {
    let (sysfs, udev_data) = host.map_or_else(Default::default, |host| (host.sysfs.clone(), host.udev_data.clone()));
    let host = taping_host(LocalHostConfig { cache_dir: cache_dir(), sysfs, udev_data });
    let host = host.context("cannot start the component host")?;
    host.load(read(path)?).await.map_err(|error| load_error(path, &error))
}

/// Loads a component, whatever it takes to compile it.
pub(crate) async fn load(name: &Path, bytes: Vec<u8>) -> anyhow::Result<Component> {
    let loaded = component_host(None)?.load(bytes, &MAX_COMPILE_LIMITS, Isolation::Shared).await;
    loaded.map_err(|error| load_error(name, &error))
}

/// Loads a component of a file with its DiscoveryHandler ([`handler_object`]) and the rules of that.
pub(crate) async fn load_with_rules(
    host: &Host,
    (path, bytes): (&Path, Vec<u8>),
    own: Option<&PathBuf>,
    others: &[Manifest],
) -> anyhow::Result<(Component, HandlerRules, DiscoveryHandler)> {
    let digest = digest_of(&bytes);
    let object = handler_object(own, others, path, digest.hex())?;
    let rules = rules(&object, digest.hex())?;
    let loaded = host.load(bytes, &rules.limits.compile, Isolation::Shared).await;
    Ok((loaded.map_err(|error| load_error(path, &error))?, rules, object))
}

/// Loads a component that an agent can compile within the limits of the DiscoveryHandler which names its file.
pub(crate) async fn load_with_object(
    path: &Path,
    bytes: Vec<u8>,
    own: &PathBuf,
) -> anyhow::Result<(Component, HandlerRules, DiscoveryHandler)> {
    let (component, rules, object) = load_with_rules(&component_host(None)?, (path, bytes), Some(own), &[]).await?;
    check_limits(path, &rules.limits.compile).await?;
    let (named, name) = (plain(&object.handler_name()), plain(&component.description().name));
    if named != name {
        print_message(format!(
            "warning: agents refuse the component: it is handler '{name}', and the object says '{named}' in spec.name"
        ));
    }
    Ok((component, rules, DiscoveryHandler { status: None, ..object }))
}

/// Returns the error of a component that was not loaded, with the remedy if agents would not compile it.
pub(crate) fn load_error(path: &Path, error: &LoadError) -> anyhow::Error {
    let remedy = match error {
        LoadError::Memory(_) | LoadError::Time(_) => format!(
            ", and an agent refuses the component without it. For an interpreter this is enough, below its spec:\n  {LARGER_LIMITS}"
        ),
        _ => String::new(),
    };
    anyhow!("'{}': {error}{remedy}", path.display())
}

/// Compiles a component within these limits, and discards the code: code in the cache says nothing of what it took to make.
pub(crate) async fn check_limits(path: &Path, limits: &CompileLimits) -> anyhow::Result<()> {
    let Some(directory) = cache_dir() else { return Ok(()) };
    // By this name the next host removes it if this process is killed.
    let scratch = directory.join(format!("scratch-{}-limits", std::process::id()));
    let (file, limits) = (path.to_owned(), limits.clone());
    let compile = move || {
        let compiled = precompile(Path::new(OWN_PROGRAM), &file, Platform::here(), &scratch, &limits);
        let _ = fs::remove_dir_all(&scratch);
        compiled
    };
    tokio::task::spawn_blocking(compile).await?.map_err(|error| load_error(path, &error))
}
