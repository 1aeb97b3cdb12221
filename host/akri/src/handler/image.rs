//! `akri handler push` and `akri handler pull`: components in registries.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use akri_model::image::{ImageReference, PinnedImage};
use akri_oci::{Client, Progress, Pulled, RegistryError, digest_of};
use anyhow::{Context as _, anyhow, ensure};

use super::args::{PullArgs, PushArgs};
use super::{Judged, bytes_of, host, load_with_rules};
use crate::output::{whole, write};
use crate::registry::{shown, user_credentials};

/// Pushes a component, and prints the DiscoveryHandler that names its image.
pub(super) async fn push(args: &PushArgs) -> anyhow::Result<ExitCode> {
    let reference = parse(&args.reference)?;
    ensure!(reference.digest.is_none(), "'{reference}' has a digest, which only the push determines; leave it out");
    let (judged, _) = load_with_rules(&host(None)?, &args.component, None, &[]).await?;
    let component = &judged.component;
    let bytes = bytes_of(&args.component, component).await?;
    let client = Client::new(&args.registry.settings()?).map_err(whole)?;
    let credentials = user_credentials()?;
    let (progress, exports) = (Arc::new(Progress::default()), [component.exported().to_owned()]);
    let pushing = client.push(&reference, bytes, (&exports, component.imports()), &credentials, &progress);
    let image = shown("pushing", &progress, pushing).await.map_err(|error| explain(&error))?;
    eprintln!("pushed {reference}");
    print_object(&image, &judged)
}

/// Pulls a component into a file, and prints the same.
pub(super) async fn pull(args: &PullArgs) -> anyhow::Result<ExitCode> {
    let reference = parse(&args.reference)?;
    let client = Client::new(&args.registry.settings()?).map_err(whole)?;
    let credentials = user_credentials()?;
    let progress = Arc::new(Progress::default());
    let image = client.resolve(&reference, &credentials).await.map_err(|error| explain(&error))?;
    let agree = |_: &akri_oci::Layer| Ok::<(), RegistryError>(());
    let pulling = client.pull(&image, &credentials, &progress, agree);
    let Pulled { component, .. } = shown("pulling", &progress, pulling).await.map_err(|error| explain(&error))?;
    let file = store(args.output.as_deref(), &reference, &component)?;
    eprintln!("pulled {image} to {}", file.display());
    let loaded = load_with_rules(&host(None)?, &file, None, &[]).await;
    let (judged, _) = loaded.context("the image was pulled, but an agent would refuse its component")?;
    let is_it = judged.component.digest() == digest_of(&component).hex();
    ensure!(is_it, "'{}' is being changed", file.display());
    print_object(&image, &judged)
}

fn parse(text: &str) -> anyhow::Result<ImageReference> {
    text.parse().map_err(|error| anyhow!("'{text}' {error}"))
}

/// Adds the remedy for missing credentials.
fn explain(error: &RegistryError) -> anyhow::Error {
    match error {
        RegistryError::Denied { given: false, .. } => anyhow!(
            "{error}; credentials are taken from where `podman login` and `docker login` put them, or from the file in \
             $REGISTRY_AUTH_FILE"
        ),
        error => whole(error),
    }
}

/// Writes the component; a file that exists is replaced only if it was named.
fn store(output: Option<&Path>, reference: &ImageReference, component: &[u8]) -> anyhow::Result<PathBuf> {
    let last = reference.repository.path().rsplit('/').next().unwrap_or_default();
    let file = output.map_or_else(|| PathBuf::from(format!("{last}.wasm")), Path::to_owned);
    let mut options = OpenOptions::new();
    match output {
        Some(_) => options.write(true).create(true).truncate(true),
        None => options.write(true).create_new(true),
    };
    let written = options.open(&file).and_then(|mut file| file.write_all(component));
    written.with_context(|| format!("cannot write '{}'; name another file with --output", file.display()))?;
    Ok(file)
}

/// Prints the DiscoveryHandler of an image, with limits on compiling if the component needs more than the default.
fn print_object(image: &PinnedImage, judged: &Judged) -> anyhow::Result<ExitCode> {
    let (handler, digest) = (&judged.component.description().name, judged.component.digest());
    let limits = judged.refusal.as_ref().map(|refusal| format!("  {}\n", refusal.enough)).unwrap_or_default();
    let name: String =
        handler.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).collect();
    write(&format!(
        "apiVersion: akri.sh/v0\nkind: DiscoveryHandler\nmetadata:\n  name: {}\nspec:\n  component:\n    image: {image}\n    \
         digest: sha256:{digest}\n{limits}",
        name.trim_matches('-')
    ))?;
    Ok(ExitCode::SUCCESS)
}
