//! `akri handler push` and `akri handler pull`: components in registries.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use akri_cli::output::{plain, with_causes, write};
use akri_cli::registry::{shown, user_credentials};
use akri_model::grant::CompileLimits;
use akri_model::image::{ImageReference, PinnedImage};
use akri_oci::{Client, Progress, Pulled, RegistryError, digest_of};
use akri_sandbox::Component;
use anyhow::{Context as _, anyhow, ensure};

use crate::args::{PullArgs, PushArgs};
use crate::component::{LARGER_LIMITS, bytes_of, check_limits, load};

/// Pushes a component, and prints the DiscoveryHandler that names its image.
pub(super) async fn push(args: &PushArgs) -> anyhow::Result<ExitCode> {
    let reference = parse(&args.reference)?;
    ensure!(reference.digest.is_none(), "'{reference}' has a digest, which only the push determines; leave it out");
    let component = load(&args.component).await?;
    let bytes = bytes_of(&args.component, &component)?;
    let client = Client::new(&args.registry.settings()?).map_err(with_causes)?;
    let credentials = user_credentials()?;
    let (progress, exports) = (Arc::new(Progress::default()), [component.exported().to_owned()]);
    let pushing = client.push(&reference, bytes, (&exports, component.imports()), &credentials, &progress);
    let image = shown("pushing", &progress, pushing).await.map_err(|error| explain(&error))?;
    eprintln!("pushed {reference}");
    print_object(&image, &args.component, &component).await
}

/// Pulls a component into a file, and prints the same.
pub(super) async fn pull(args: &PullArgs) -> anyhow::Result<ExitCode> {
    let reference = parse(&args.reference)?;
    let client = Client::new(&args.registry.settings()?).map_err(with_causes)?;
    let credentials = user_credentials()?;
    let progress = Arc::new(Progress::default());
    let image = client.resolve(&reference, &credentials).await.map_err(|error| explain(&error))?;
    let agree = |_: &akri_oci::Layer| std::future::ready(Ok::<(), RegistryError>(()));
    let pulling = client.pull(&image, &credentials, &progress, agree);
    let (Pulled { component, .. }, ()) = shown("pulling", &progress, pulling).await.map_err(|error| explain(&error))?;
    let file = store(args.output.as_deref(), &reference, &component)?;
    eprintln!("pulled {image} to {}", file.display());
    let loaded = load(&file).await.context("the image was pulled, but an agent would refuse its component")?;
    ensure!(loaded.digest() == digest_of(&component).hex(), "'{}' is being changed", file.display());
    print_object(&image, &file, &loaded).await
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
async fn print_object(image: &PinnedImage, file: &Path, component: &Component) -> anyhow::Result<ExitCode> {
    let (handler, digest) = (&component.description().name, component.digest());
    let is_small = check_limits(file, &CompileLimits::default()).await.is_ok();
    let limits = if is_small { String::new() } else { format!("  {LARGER_LIMITS}\n") };
    let name: String =
        handler.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).collect();
    write(&format!(
        "apiVersion: akri.sh/v0\nkind: DiscoveryHandler\nmetadata:\n  name: {}\nspec:\n  name: {}\n  component:\n    image: {image}\n    \
         digest: sha256:{digest}\n{limits}",
        name.trim_matches('-'),
        plain(handler),
    ))?;
    Ok(ExitCode::SUCCESS)
}
