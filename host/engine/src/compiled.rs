//! The code of components: compiled once, whoever uses it.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use akri_model::text::{clean, hex};
use sha2::{Digest, Sha256};
use wasmparser::BinaryReaderError;
use wasmtime::Engine;
use wasmtime::component::Linker;

use crate::bindings::DiscoveryHandlerPre;
use crate::component::{LoadError, MAX_COMPONENT};
use crate::contract;
use crate::instance_cost::context_bytes;
use crate::round::Round;

/// Bytes of the contexts of a component's instances, as they are estimated: less than a sandbox process may have.
const CONTEXTS: u64 = 256 << 20;

/// Code that fits to this host, and what can be told without running it.
pub(crate) struct Compiled {
    pub(crate) pre: DiscoveryHandlerPre<Round>,
    /// SHA-256 of the component's bytes, in lower hex.
    pub(crate) digest: String,
    pub(crate) exported: String,
    pub(crate) imports: Vec<String>,
}

/// The compiled components in use, by digest: handlers made of the same bytes, with grants of their own, share their
/// code, which is most of a handler's memory between rounds.
#[derive(Default)]
pub(crate) struct Library(HashMap<String, Weak<Compiled>>);

impl Library {
    /// Returns the code of a component: that in use for its digest, or compiled code. It blocks.
    pub(crate) fn load(
        &mut self,
        engine: &Engine,
        linker: &Linker<Round>,
        source: &ComponentBytes,
    ) -> Result<Arc<Compiled>, LoadError> {
        if let Some(known) = self.0.get(&source.digest).and_then(Weak::upgrade) {
            return Ok(known);
        }
        let compiled = Arc::new(Compiled::new(engine, linker, source)?);
        self.0.retain(|_, compiled| compiled.strong_count() > 0);
        self.0.insert(compiled.digest.clone(), Arc::downgrade(&compiled));
        Ok(compiled)
    }
}

impl Compiled {
    fn new(engine: &Engine, linker: &Linker<Round>, source: &ComponentBytes) -> Result<Self, LoadError> {
        let ComponentBytes { bytes, digest } = source;
        // The text names what the component chose to name.
        let why = |error: wasmtime::Error| clean(&format!("{error:#}"), 1024);
        let component = wasmtime::component::Component::from_binary(engine, bytes.as_slice())
            .map_err(|error| contract::not_a_component(&why(error)))?;
        let types = component.component_type();
        let imports = types.imports(engine).map(|(name, _)| name.to_owned()).collect();
        let exported = types.exports(engine).map(|(name, _)| name).find(|name| name.starts_with(contract::HANDLER));
        let exported = exported.unwrap_or_default().to_owned();
        let link_error = |error| contract::link_error(&why(error));
        let pre = linker.instantiate_pre(&component).map_err(link_error)?;
        let pre = DiscoveryHandlerPre::new(pre).map_err(link_error)?;
        Ok(Self { pre, digest: digest.clone(), exported, imports })
    }
}

/// A component's bytes, checked before they are compiled.
#[derive(Debug)]
pub struct ComponentBytes {
    /// The bytes.
    pub bytes: Arc<Vec<u8>>,
    /// Their SHA-256, in lower hex.
    pub digest: String,
}

impl ComponentBytes {
    /// Checks a component as far as is possible before it is compiled.
    ///
    /// # Errors
    /// If it is too large, or if it can't be a handler.
    pub async fn new(bytes: Vec<u8>) -> Result<Self, LoadError> {
        if bytes.len() > MAX_COMPONENT {
            let size = bytes.len();
            return Err(LoadError::Refused(format!("the component has {size} bytes, more than {MAX_COMPONENT}")));
        }
        let stopped = |why| LoadError::Unavailable(format!("the check of its bytes was ended: {why}"));
        tokio::task::spawn_blocking(move || Self::check(bytes)).await.map_err(stopped)?
    }

    fn check(bytes: Vec<u8>) -> Result<Self, LoadError> {
        contract::check_header(&bytes)?;
        check_contexts(&bytes)?;
        contract::check_names(&bytes)?;
        Ok(Self { digest: hex(&Sha256::digest(&bytes)), bytes: Arc::new(bytes) })
    }
}

/// Refuses a component whose instances could take more memory than there is, beside what the limits of a round count.
fn check_contexts(bytes: &[u8]) -> Result<(), LoadError> {
    let damaged = |error: BinaryReaderError| contract::not_a_component(&clean(&error.to_string(), 1024));
    let needed = context_bytes(bytes).map_err(damaged)?;
    if needed <= CONTEXTS {
        return Ok(());
    }
    let what =
        format!("the component has instances whose globals and functions take {needed} bytes (at most {CONTEXTS})");
    Err(LoadError::Refused(what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_lower_hex() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(hex(&Sha256::digest([])), empty);
    }
}
