//! The code of components: compiled once, whoever uses it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use sha2::{Digest, Sha256};
use wasmtime::Engine;
use wasmtime::component::Linker;

use crate::bindings::DiscoveryHandlerPre;
use crate::component::LoadError;
use crate::round::Round;
use crate::text::clean;

/// What the interface that makes a handler is called, whatever its version.
const HANDLER: &str = "akri:discovery/handler@";

/// Code that fits to this host, and what can be told without running it.
pub(crate) struct Compiled {
    pub(crate) pre: DiscoveryHandlerPre<Round>,
    /// SHA-256 of the component's bytes, in lower hex.
    pub(crate) digest: String,
    pub(crate) size: usize,
    pub(crate) exported: String,
    pub(crate) imports: Vec<String>,
}

/// What is in use, by digest: handlers that are made of the same bytes, with grants of their own, share their code, which is
/// most of what a handler takes between rounds.
#[derive(Default)]
pub(crate) struct Library(Mutex<HashMap<String, Weak<Compiled>>>);

impl Library {
    /// The code of a component, compiled unless it is in use already. It blocks, and has to be called by one at a time.
    pub(crate) fn compile(
        &self,
        engine: &Engine,
        linker: &Linker<Round>,
        bytes: &[u8],
    ) -> Result<Arc<Compiled>, LoadError> {
        let digest = hex(&Sha256::digest(bytes));
        if let Some(known) = self.known(&digest) {
            return Ok(known);
        }
        let compiled = Arc::new(Compiled::new(engine, linker, bytes, digest)?);
        let mut library = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        library.retain(|_, compiled| compiled.strong_count() > 0);
        library.insert(compiled.digest.clone(), Arc::downgrade(&compiled));
        Ok(compiled)
    }

    fn known(&self, digest: &str) -> Option<Arc<Compiled>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(digest)?.upgrade()
    }
}

impl Compiled {
    fn new(engine: &Engine, linker: &Linker<Round>, bytes: &[u8], digest: String) -> Result<Self, LoadError> {
        // The text names what the component chose to name.
        let why = |error: wasmtime::Error| clean(&format!("{error:#}"), 1024);
        let component = wasmtime::component::Component::from_binary(engine, bytes)
            .map_err(|error| LoadError::Invalid(why(error)))?;
        let types = component.component_type();
        let imports = types.imports(engine).map(|(name, _)| name.to_owned()).collect();
        let exported = types.exports(engine).map(|(name, _)| name).find(|name| name.starts_with(HANDLER));
        let exported = exported.unwrap_or_default().to_owned();
        let not_a_handler = |error| LoadError::NotAHandler(why(error));
        let pre = linker.instantiate_pre(&component).map_err(not_a_handler)?;
        let pre = DiscoveryHandlerPre::new(pre).map_err(not_a_handler)?;
        Ok(Self { pre, digest, size: bytes.len(), exported, imports })
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
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
