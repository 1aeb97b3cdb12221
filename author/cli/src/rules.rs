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

/// Returns the DiscoveryHandler for a component: of its own file, or the one of other objects that names the component's file, or the
/// default, which grants nothing.
pub(crate) fn handler_object(
    own: Option<&PathBuf>,
    others: &[Manifest],
    path: &Path,
    digest: &str,
) -> anyhow::Result<DiscoveryHandler> {
    let file = file_name(path)?;
    if let Some(own) = own {
        return own_object(&subject::read(own)?, own, file, digest).cloned();
    }
    let found = handler_of(others, file, digest).cloned();
    if let (None, Some(other)) = (&found, handlers(others).next()) {
        print_message(format!(
            "warning: nothing is granted: the DiscoveryHandler '{}' names '{}' and not '{file}' in spec.component.file",
            other.name_any(),
            plain(&other.spec.component.file),
        ));
    }
    Ok(found.unwrap_or_default())
}

/// Returns the DiscoveryHandler of its own file that is for a component.
fn own_object<'a>(
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
pub(crate) fn rules(object: &DiscoveryHandler, digest: &str) -> anyhow::Result<HandlerRules> {
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
