//! `akri handler`: tools for authors of handlers, and for administrators who grant them access.

mod args;
mod build;
mod compile;
mod compile_limits;
mod dev;
mod image;
mod inspect;
mod new;
mod pack;
mod project;
mod record;
mod replay;
mod run;
mod templates;
mod test;
mod validate;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use akri_api::manifest::{Manifest, Object};
use akri_api::{DiscoveryHandler, HandlerRules};
use akri_cluster::HandlerObject;
use akri_engine::{LocalComponent, LocalHost, LocalHostConfig};
use akri_model::grant::CompileLimits;
use akri_oci::digest_of;
use akri_sandbox::{Component, Host};
use anyhow::{Context as _, anyhow, bail, ensure};
use kube::ResourceExt as _;

pub(crate) use self::args::HandlerCommand;
use self::compile_limits::{File, Judged, Refusal};
use crate::cli::HostArgs;
use crate::discover::load::{cache_dir, host};
use crate::output::plain;
use crate::subject::{self, Subject};

/// Limits on compiling a component by hand: generous, since a person waits for it.
const PATIENT: CompileLimits = CompileLimits { memory_bytes: 2 << 30, time: Duration::from_secs(300) };

/// Runs the subcommand.
pub(crate) async fn run(command: HandlerCommand) -> anyhow::Result<ExitCode> {
    match command {
        HandlerCommand::Inspect(args) => inspect::run(&args).await,
        HandlerCommand::Validate(args) => validate::run(&args).await,
        HandlerCommand::Run(args) => run::run(&args).await,
        HandlerCommand::Dev(args) => dev::run(&args).await,
        HandlerCommand::Test(args) => test::run(&args).await,
        HandlerCommand::New(args) => new::run(&args),
        HandlerCommand::Wit(args) => new::wit(&args),
        HandlerCommand::Compile(args) => compile::run(&args),
        HandlerCommand::Pack(args) => pack::run(&args).await,
        HandlerCommand::Push(args) => image::push(&args).await,
        HandlerCommand::Pull(args) => image::pull(&args).await,
    }
}

/// Does what has to be done before there are threads, if that was asked for.
pub(crate) fn run_alone(command: &HandlerCommand) -> Option<anyhow::Result<ExitCode>> {
    match command {
        HandlerCommand::Compile(args) => Some(compile::run(args)),
        _ => None,
    }
}

/// Loads a component, whatever it takes to compile it.
async fn load(file: &Path) -> anyhow::Result<Component> {
    let loaded = host(None)?.load_within(read(file).await?, &PATIENT).await;
    loaded.map_err(|error| anyhow!("'{}': {error}", file.display()))
}

/// Loads a component into this process, for rounds that are recorded or played. Without arguments it can't read devices.
async fn load_taping(file: &Path, host: Option<&HostArgs>) -> anyhow::Result<LocalComponent> {
    let (sysfs, udev_data) = host.map_or_else(Default::default, |host| (host.sysfs.clone(), host.udev_data.clone()));
    let config = LocalHostConfig { cache_dir: cache_dir(), sysfs, udev_data };
    let host = LocalHost::taping(config).map_err(|error| anyhow!("cannot start the component host: {error}"))?;
    let loaded = host.load(read(file).await?).await;
    loaded.map_err(|error| anyhow!("'{}': {error}", file.display()))
}

/// Loads a component with the rules of its DiscoveryHandler ([`rules`]).
async fn load_with_rules(
    host: &Host,
    path: &Path,
    own: Option<&PathBuf>,
    others: &[Manifest],
) -> anyhow::Result<(Judged, HandlerRules)> {
    let bytes = read(path).await?;
    let digest = digest_of(&bytes);
    let rules = rules(own, others, path, digest.hex())?;
    let judged = load_judged(host, File { path, bytes, digest: digest.hex() }, &rules).await?;
    Ok((judged, rules))
}

/// Loads a component, and judges whether an agent would compile it.
async fn load_judged(host: &Host, file: File<'_>, rules: &HandlerRules) -> anyhow::Result<Judged> {
    let path = file.path;
    let loaded = compile_limits::load(host, file, &rules.limits.compile).await;
    loaded.map_err(|error| anyhow!("'{}': {error}", path.display()))
}

/// Warns of a component that an agent would refuse to compile.
fn warn_of_refusal(refusal: Option<&Refusal>) {
    refusal.into_iter().for_each(|refusal| eprintln!("warning: {refusal}"));
}

async fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    tokio::fs::read(file).await.with_context(|| format!("cannot read '{}'", plain(&file.display().to_string())))
}

/// Returns the bytes of a component that was loaded.
async fn bytes_of(file: &Path, component: &Component) -> anyhow::Result<Vec<u8>> {
    let bytes = tokio::fs::read(file).await.context("cannot read the component")?;
    ensure!(digest_of(&bytes).hex() == component.digest(), "'{}' is being changed", file.display());
    Ok(bytes)
}

fn file_name(component: &Path) -> anyhow::Result<&str> {
    component.file_name().and_then(|name| name.to_str()).context("the component has no file name")
}

/// Returns the Configurations of a file for the component's handler.
fn subjects(file: &Path, manifests: &[Manifest], component: &Component) -> anyhow::Result<Vec<Subject>> {
    let handler = &component.description().name;
    let (mine, others): (Vec<Subject>, Vec<Subject>) =
        manifests.iter().filter_map(Subject::of).partition(|subject| subject.configuration.handler == *handler);
    if mine.is_empty() {
        let named: Vec<&str> = others.iter().map(|subject| subject.configuration.handler.as_str()).collect();
        let named = if named.is_empty() { "none".to_owned() } else { named.join(", ") };
        bail!("'{}' holds no Configuration for handler '{handler}'; handlers named there: {named}", file.display());
    }
    Ok(mine)
}

/// Returns the rules of the DiscoveryHandler for a component: from its own file, or from the objects that name the
/// component's file, or the default, which grants nothing. Fails if the agent would refuse the component.
fn rules(own: Option<&PathBuf>, others: &[Manifest], path: &Path, digest: &str) -> anyhow::Result<HandlerRules> {
    let file = file_name(path)?;
    let Some(own) = own else {
        let is_named = |object: &&DiscoveryHandler| object.spec.component.file == file || is_image_of(object, digest);
        if let Some(object) = handlers(others).find(is_named) {
            return granted(object, digest);
        }
        if let Some(other) = handlers(others).next() {
            eprintln!(
                "warning: nothing is granted: the DiscoveryHandler '{}' names '{}' and not '{file}' in spec.component.file",
                other.name_any(),
                plain(&other.spec.component.file),
            );
        }
        return Ok(HandlerRules::from(&DiscoveryHandler::default()));
    };
    let manifests = subject::read(own)?;
    granted(own_object(&manifests, own, file, digest)?, digest)
}

/// Returns the DiscoveryHandler of its own file that is for a component.
fn own_object<'a>(
    manifests: &'a [Manifest],
    own: &Path,
    file: &str,
    digest: &str,
) -> anyhow::Result<&'a DiscoveryHandler> {
    let all: Vec<&DiscoveryHandler> = handlers(manifests).collect();
    let is_named = |object: &&&DiscoveryHandler| object.spec.component.file == file || is_image_of(object, digest);
    if let Some(object) = all.iter().find(is_named) {
        return Ok(object);
    }
    match all.as_slice() {
        [] => bail!("'{}' holds no DiscoveryHandler", own.display()),
        // The component of an image has no name; its digest tells, if it is given.
        [only] if only.spec.component.image.is_some() => Ok(only),
        [only] => bail!(
            "the DiscoveryHandler '{}' of '{}' names '{}', so that the agent would not run '{file}' for it; name that in \
             spec.component.file",
            only.name_any(),
            own.display(),
            plain(&only.spec.component.file),
        ),
        _ => bail!("none of the DiscoveryHandlers of '{}' names '{file}'", own.display()),
    }
}

/// Returns whether an object names an image with this component.
fn is_image_of(object: &DiscoveryHandler, digest: &str) -> bool {
    object.spec.component.image.is_some() && HandlerObject::from(object).digest.as_deref() == Some(digest)
}

/// Returns the rules of an object, if the component has the digest it requires.
fn granted(object: &DiscoveryHandler, digest: &str) -> anyhow::Result<HandlerRules> {
    let HandlerObject { digest: wanted, rules, .. } = HandlerObject::from(object);
    if let Some(wanted) = wanted.filter(|wanted| wanted != digest) {
        bail!(
            "the component has digest sha256:{digest}, the DiscoveryHandler '{}' wants sha256:{wanted}, so that the agent \
             would refuse it; if it is the right one, change spec.component.digest",
            object.name_any(),
        );
    }
    Ok(rules)
}

fn handlers(manifests: &[Manifest]) -> impl Iterator<Item = &DiscoveryHandler> {
    manifests.iter().filter_map(|manifest| match &manifest.object {
        Object::DiscoveryHandler(object) => Some(&**object),
        Object::Configuration(_) | Object::ConfigMap(_) | Object::Secret(_) => None,
    })
}
