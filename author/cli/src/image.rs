//! `akri handler push` and `akri handler pull`: components in registries.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use akri_api::{ComponentRef, DiscoveryHandler, DiscoveryHandlerSpec};
use akri_cli::component::read;
use akri_cli::output::{plain, print_message, with_causes, write};
use akri_cli::registry::{shown, user_credentials};
use akri_model::grant::CompileLimits;
use akri_model::image::{ImageReference, PinnedImage};
use akri_oci::{Client, Progress, Pulled, RegistryError};
use akri_sandbox::Component;
use anyhow::{Context as _, anyhow, ensure};
use serde::Serialize;

use crate::args::{PullArgs, PushArgs};
use crate::component::{check_limits, larger_limits, load, load_with_object};
use crate::output_file;

/// Pushes a component, and prints the DiscoveryHandler that names its image.
pub(super) async fn push(args: &PushArgs) -> anyhow::Result<ExitCode> {
    let reference = parse(&args.reference)?;
    ensure!(reference.digest.is_none(), "'{reference}' has a digest, which only the push determines; leave it out");
    let bytes = read(&args.component)?;
    let (component, object) = match &args.handler_object {
        Some(own) => {
            let (component, _, object) = load_with_object(&args.component, bytes.clone(), own).await?;
            (component, object)
        }
        None => {
            let component = load(&args.component, bytes.clone()).await?;
            let object = new_object(&args.component, &component).await;
            (component, object)
        }
    };
    let client = Client::new(&args.registry.settings()?).map_err(with_causes)?;
    let credentials = user_credentials()?;
    let (progress, exports) = (Arc::new(Progress::default()), [component.exported().to_owned()]);
    let pushing = client.push(&reference, bytes, (&exports, component.imports()), &credentials, &progress);
    let image = shown("pushing", &progress, pushing).await.map_err(|error| explain(&error))?;
    print_message(format!("pushed {reference}"));
    print_object(object, &image, &component)
}

/// Pulls a component into a file, and prints the same.
pub(super) async fn pull(args: &PullArgs) -> anyhow::Result<ExitCode> {
    let reference = parse(&args.reference)?;
    let file = file_for(args.output.as_deref(), &reference)?;
    let client = Client::new(&args.registry.settings()?).map_err(with_causes)?;
    let credentials = user_credentials()?;
    let progress = Arc::new(Progress::default());
    let image = client.resolve(&reference, &credentials).await.map_err(|error| explain(&error))?;
    let agree = |_: &akri_oci::Layer| std::future::ready(Ok::<(), RegistryError>(()));
    let pulling = client.pull(&image, &credentials, &progress, agree);
    let (Pulled { component, .. }, ()) = shown("pulling", &progress, pulling).await.map_err(|error| explain(&error))?;
    let loaded = load(Path::new(&args.reference), component.clone()).await;
    let loaded = loaded.context("the image is not stored, since an agent would refuse its component")?;
    output_file::write(&file, &component)?;
    print_message(format!("pulled {image} to {}", file.display()));
    print_object(new_object(&file, &loaded).await, &image, &loaded)
}

/// Parses a reference. What precedes an '@' without a digest may be a password, and is not repeated.
fn parse(text: &str) -> anyhow::Result<ImageReference> {
    let shown = match text.rsplit_once('@') {
        Some((_, rest)) if !rest.starts_with("sha256:") => plain(&format!("...@{rest}")),
        _ => plain(text),
    };
    text.parse().map_err(|error| anyhow!("'{shown}' {error}"))
}

/// Adds the remedy for missing credentials.
fn explain(error: &RegistryError) -> anyhow::Error {
    match error {
        RegistryError::Denied { given: false, .. } => anyhow!(
            "{error}; credentials are taken from where `podman login` and `docker login` put them, or from the file in \
             $REGISTRY_AUTH_FILE"
        ),
        error => with_causes(error),
    }
}

/// Returns the file for a component; one that exists is replaced only if it was named. Standard output has the object.
fn file_for(output: Option<&Path>, reference: &ImageReference) -> anyhow::Result<PathBuf> {
    ensure!(output != Some(Path::new("-")), "--output is a file: the DiscoveryHandler goes to standard output");
    let last = reference.repository.path().rsplit('/').next().unwrap_or_default();
    let file = output.map_or_else(|| PathBuf::from(format!("{last}.wasm")), Path::to_owned);
    ensure!(
        output.is_some() || file.symlink_metadata().is_err(),
        "'{}' exists; name a file with --output",
        file.display()
    );
    Ok(file)
}

/// Returns a DiscoveryHandler for a component, with limits on compiling if it needs more than the default.
async fn new_object(file: &Path, component: &Component) -> DiscoveryHandler {
    let handler = &component.description().name;
    let is_small = check_limits(file, &CompileLimits::default()).await.is_ok();
    let mut object = DiscoveryHandler::new(&object_name(handler), DiscoveryHandlerSpec::default());
    object.spec.name = Some(handler.clone());
    object.spec.limits.compile = (!is_small).then(larger_limits);
    object
}

/// Returns the name for the object of a handler.
pub(super) fn object_name(handler: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    handler.chars().map(allowed).collect::<String>().trim_matches('-').to_owned()
}

/// Prints a DiscoveryHandler with an image in place of its file.
fn print_object(mut object: DiscoveryHandler, image: &PinnedImage, component: &Component) -> anyhow::Result<ExitCode> {
    let (image, digest) = (Some(image.to_string()), Some(format!("sha256:{}", component.digest())));
    object.spec.component = ComponentRef { file: String::new(), image, digest, ..object.spec.component };
    write(&yaml(&object)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns a value as YAML, long texts on one line.
pub(super) fn yaml(value: &impl Serialize) -> anyhow::Result<String> {
    let options = serde_saphyr::ser_options! { folded_wrap_chars: 4096 };
    serde_saphyr::to_string_with_options(value, options).context("cannot write YAML")
}
