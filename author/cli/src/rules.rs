//! The DiscoveryHandler of a component, and the Configurations for it.

use std::path::{Path, PathBuf};

use akri_api::manifest::Manifest;
use akri_api::{DiscoveryHandler, HandlerRules};
use akri_cli::output::{plain, print_message};
use akri_cli::subject::{self, Subject, handler_of, handlers};
use akri_cluster::HandlerObject;
use anyhow::{Context as _, bail};
use kube::ResourceExt as _;

/// Returns the name of a component's file.
pub(crate) fn file_name(component: &Path) -> anyhow::Result<&str> {
    component.file_name().and_then(|name| name.to_str()).context("the component has no file name")
}

/// Returns the Configurations of a file for the component's handler.
pub(crate) fn subjects(file: &Path, manifests: &[Manifest], handler: &str) -> anyhow::Result<Vec<Subject>> {
    let (mine, others): (Vec<Subject>, Vec<Subject>) =
        manifests.iter().filter_map(Subject::of).partition(|subject| subject.configuration.handler == handler);
    if mine.is_empty() {
        let named: Vec<&str> = others.iter().map(|subject| subject.configuration.handler.as_str()).collect();
        let named = if named.is_empty() { "none".to_owned() } else { named.join(", ") };
        bail!("'{}' holds no Configuration for handler '{handler}'; handlers named there: {named}", file.display());
    }
    Ok(mine)
}

/// Returns the rules of the DiscoveryHandler for a component: from its own file, or from the objects that name the
/// component's file, or the default, which grants nothing. Fails if the agent would refuse the component.
pub(crate) fn rules(
    own: Option<&PathBuf>,
    others: &[Manifest],
    path: &Path,
    digest: &str,
) -> anyhow::Result<HandlerRules> {
    let file = file_name(path)?;
    let Some(own) = own else {
        if let Some(object) = handler_of(others, file, digest) {
            return granted(object, digest);
        }
        if let Some(other) = handlers(others).next() {
            print_message(format!(
                "warning: nothing is granted: the DiscoveryHandler '{}' names '{}' and not '{file}' in spec.component.file",
                other.name_any(),
                plain(&other.spec.component.file),
            ));
        }
        return Ok(HandlerRules::from(&DiscoveryHandler::default()));
    };
    let manifests = subject::read(own)?;
    granted(own_object(&manifests, own, file, digest)?, digest)
}

/// Returns the DiscoveryHandler of its own file that is for a component.
pub(crate) fn own_object<'a>(
    manifests: &'a [Manifest],
    own: &Path,
    file: &str,
    digest: &str,
) -> anyhow::Result<&'a DiscoveryHandler> {
    if let Some(object) = handler_of(manifests, file, digest) {
        return Ok(object);
    }
    let all: Vec<&DiscoveryHandler> = handlers(manifests).collect();
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

/// Returns the rules of an object, if the component has the digest it requires.
pub(crate) fn granted(object: &DiscoveryHandler, digest: &str) -> anyhow::Result<HandlerRules> {
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
