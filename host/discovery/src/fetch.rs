//! The component that a DiscoveryHandler object names: the one that runs, or one that is read and loaded.

use std::path::PathBuf;
use std::sync::Arc;

use akri_api::ComponentSource;
use akri_cluster::HandlerObject;
use akri_model::image::ImageSource;
use akri_sandbox::{Component, Host};

use crate::component_file::ComponentFile;
use crate::images::Images;
use crate::load_progress::LoadProgress;
use crate::registry::{Handler, Refused};

/// Returns the component that an object asks for: the one that runs, if it is that.
pub(crate) async fn fetch(
    host: Host,
    (directories, images): (Vec<PathBuf>, Images),
    object: HandlerObject,
    running: Option<Arc<Handler>>,
    progress: Arc<LoadProgress>,
) -> Result<Component, Refused> {
    let isolation = object.rules.isolation;
    let running = running.filter(|running| running.component.isolation() == isolation);
    let file = match &object.source {
        ComponentSource::File(name) => ComponentFile::read(&directories, name).await?,
        ComponentSource::Image(source) => {
            if let Some(running) = running.as_deref().filter(|running| is_of(running, source, &object)) {
                return Ok(running.component.clone());
            }
            let failed = |error: Refused| Refused {
                message: format!("component '{}': {}", source.image, error.message),
                ..error
            };
            images.read(source, &progress.transfer).await.map_err(failed)?
        }
    };
    progress.set_read();
    if let Some(wanted) = object.digest.filter(|wanted| *wanted != file.digest) {
        let (path, actual) = (file.path.display(), &file.digest);
        let message = format!("component '{path}' has digest sha256:{actual}, the object wants sha256:{wanted}");
        return Err(Refused::new("DigestMismatch", message));
    }
    match running.filter(|running| running.component.digest() == file.digest) {
        Some(running) => Ok(running.component.clone()),
        None => file.load(&host, &object.rules.limits.compile, isolation).await,
    }
}

/// Returns whether a handler runs the image that its object names, and trusts as it is: then nothing is read, and what
/// can't be kept isn't pulled again.
fn is_of(running: &Handler, source: &ImageSource, object: &HandlerObject) -> bool {
    let is_same = |of: &ImageSource| of.image == source.image && of.is_covered_by(&source.keys);
    let is_digest = |wanted: &String| wanted == running.component.digest();
    running.source.image().is_some_and(is_same) && object.digest.as_ref().is_none_or(is_digest)
}
