//! The objects of a file, on which commands without a cluster work.

use std::io;
use std::path::Path;
use std::sync::Arc;

use akri_api::manifest::{self, Manifest, Object};
use akri_api::{DiscoveryHandler, configuration_to_model};
use akri_cluster::HandlerObject;
use akri_cluster::local::{MAX_FILE, Scan, read_directory};
use akri_model::configuration::Configuration;
use akri_model::device::Note;
use akri_model::discovery::RoundError;
use akri_node::regular_file;
use anyhow::{Context as _, bail};

use crate::output::{plain, print_message};

/// A Configuration with its location in the file.
pub struct Subject {
    /// The Configuration.
    pub configuration: Arc<Configuration>,
    /// Its text, for the lines of errors.
    pub manifest: Manifest,
}

/// A failed round.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// A CamelCase word.
    pub reason: &'static str,
    /// A message, possibly of several lines.
    pub message: String,
    /// Set if the next round fails likewise unless something is changed.
    pub is_lasting: bool,
}

/// Reads the objects of a file, of all manifests in a directory, or of standard input (`-`).
///
/// # Errors
/// All errors in it.
pub fn read(file: &Path) -> anyhow::Result<Vec<Manifest>> {
    let (manifests, errors) = if file.is_dir() {
        let Scan { files, errors } = read_directory(file);
        (files.into_values().flatten().collect(), errors)
    } else {
        manifest::parse(file, &text_of(file).with_context(|| format!("cannot read '{}'", file.display()))?)
    };
    if !errors.is_empty() {
        let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
        bail!("{}", lines.join("\nerror: "));
    }
    Ok(manifests)
}

fn text_of(file: &Path) -> io::Result<String> {
    match file == Path::new("-") {
        true => regular_file::text(regular_file::read_bounded(io::stdin().lock(), MAX_FILE, Vec::new())?),
        false => regular_file::read_text(file, MAX_FILE),
    }
}

/// Returns the DiscoveryHandlers among objects.
pub fn handlers<'a>(manifests: impl IntoIterator<Item = &'a Manifest>) -> impl Iterator<Item = &'a DiscoveryHandler> {
    manifests.into_iter().filter_map(|manifest| match &manifest.object {
        Object::DiscoveryHandler(object) => Some(&**object),
        Object::Configuration(_) | Object::Data(..) => None,
    })
}

/// Returns the DiscoveryHandler of a component: the first one that names its file, or an image with its digest.
pub fn handler_of<'a>(manifests: &'a [Manifest], file: &str, digest: &str) -> Option<&'a DiscoveryHandler> {
    let is_image = |object: &DiscoveryHandler| {
        object.spec.component.image.is_some() && HandlerObject::from(object).digest.as_deref() == Some(digest)
    };
    handlers(manifests).find(|object| object.spec.component.file == file || is_image(object))
}

impl Subject {
    /// Returns the Configuration of a manifest, if it is one.
    pub fn of(manifest: &Manifest) -> Option<Self> {
        let Object::Configuration(object) = &manifest.object else { return None };
        Some(Self { configuration: Arc::new(configuration_to_model(object)), manifest: manifest.clone() })
    }

    /// Returns the Configuration's namespace and name.
    pub fn name(&self) -> String {
        self.configuration.key.to_string()
    }

    /// Converts a round's error to a failure; problems of details are located by file, line and field.
    pub fn failure(&self, error: &RoundError) -> Failure {
        let message = match error {
            RoundError::InvalidDetails(problems) => {
                let located = self.manifest.locate_problems(&self.configuration.details, problems);
                located.iter().map(ToString::to_string).collect::<Vec<_>>().join("\nerror: ")
            }
            error => format!("{}: {error}", self.configuration.key),
        };
        let is_lasting = matches!(error, RoundError::InvalidDetails(_) | RoundError::PropertiesUnresolved(_));
        Failure { reason: error.reason(), message, is_lasting }
    }
}

/// Prints the warnings of a round.
pub fn warn(notes: &[Note], dropped: u64, configuration: &str) {
    for note in notes {
        print_message(format!(
            "warning: {}: {} ({})",
            plain(configuration),
            plain(&note.sentence()),
            plain(&note.reason)
        ));
    }
    if dropped > 0 {
        print_message(format!("warning: {}: {dropped} more warnings", plain(configuration)));
    }
}
