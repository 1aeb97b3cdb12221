//! The code of components: compiled once, whoever uses it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use akri_model::text::{clean, hex};
use sha2::{Digest, Sha256};
use wasmtime::Engine;
use wasmtime::component::Linker;

use crate::bindings::DiscoveryHandlerPre;
use crate::component::LoadError;
use crate::instance_cost::InstanceCost;
use crate::limiter::INSTANCES;
use crate::round::Round;

/// Bytes of the contexts of a component's instances. Python's, with a hundred of them, take two megabytes.
const CONTEXTS: usize = 32 << 20;

/// Bytes of a file that is no component that are looked at.
const BEGINNING: usize = 80;

/// The start of the name of the interface that makes a handler, in any version.
const HANDLER: &str = "akri:discovery/handler@";

/// Code that fits to this host, and what can be told without running it.
pub(crate) struct Compiled {
    pub(crate) pre: DiscoveryHandlerPre<Round>,
    /// SHA-256 of the component's bytes, in lower hex.
    pub(crate) digest: String,
    pub(crate) size: usize,
    /// Bytes of the contexts of all instances.
    pub(crate) contexts: usize,
    pub(crate) exported: String,
    pub(crate) imports: Vec<String>,
}

/// The compiled components in use, by digest: handlers made of the same bytes, with grants of their own, share their
/// code, which is most of a handler's memory between rounds.
#[derive(Default)]
pub(crate) struct Library(Mutex<HashMap<String, Weak<Compiled>>>);

impl Library {
    /// The code of a component, loaded unless it is in use already. It blocks, and has to be called by one at a time.
    pub(crate) fn load(
        &self,
        engine: &Engine,
        linker: &Linker<Round>,
        source: &Source,
    ) -> Result<Arc<Compiled>, LoadError> {
        if let Some(known) = self.known(&source.judged.digest) {
            return Ok(known);
        }
        let compiled = Arc::new(Compiled::new(engine, linker, source)?);
        let mut library = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        library.retain(|_, compiled| compiled.strong_count() > 0);
        library.insert(compiled.digest.clone(), Arc::downgrade(&compiled));
        Ok(compiled)
    }

    /// Returns the code in use for a digest.
    pub(crate) fn known(&self, digest: &str) -> Option<Arc<Compiled>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(digest)?.upgrade()
    }
}

impl Compiled {
    fn new(engine: &Engine, linker: &Linker<Round>, source: &Source) -> Result<Self, LoadError> {
        let Source { bytes, judged: Judged { digest, contexts } } = source;
        // The text names what the component chose to name.
        let why = |error: wasmtime::Error| clean(&format!("{error:#}"), 1024);
        let component = wasmtime::component::Component::from_binary(engine, bytes.as_slice())
            .map_err(|error| LoadError::Invalid(why(error)))?;
        let types = component.component_type();
        let imports = types.imports(engine).map(|(name, _)| name.to_owned()).collect();
        let exported = types.exports(engine).map(|(name, _)| name).find(|name| name.starts_with(HANDLER));
        let exported = exported.unwrap_or_default().to_owned();
        let not_a_handler = |error| LoadError::NotAHandler(why(error));
        let pre = linker.instantiate_pre(&component).map_err(not_a_handler)?;
        let pre = DiscoveryHandlerPre::new(pre).map_err(not_a_handler)?;
        Ok(Self { pre, digest: digest.clone(), size: bytes.len(), contexts: *contexts, exported, imports })
    }
}

/// A component's bytes, and what was found out about them.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) bytes: Arc<Vec<u8>>,
    pub(crate) judged: Judged,
}

/// Facts about a component that are known before it is compiled.
#[derive(Debug)]
pub(crate) struct Judged {
    /// SHA-256 of its bytes, in lower hex.
    pub(crate) digest: String,
    /// Bytes of the contexts of all instances.
    contexts: usize,
}

/// Looks at a component before it is compiled. Blocks for as long as reading it takes.
pub(crate) fn judge(bytes: &[u8]) -> Result<Judged, LoadError> {
    if !bytes.starts_with(b"\0asm") {
        return Err(LoadError::Invalid(no_wasm(bytes)));
    }
    Ok(Judged { digest: hex(&Sha256::digest(bytes)), contexts: contexts(bytes)? })
}

/// Returns what a file is that is no WebAssembly.
fn no_wasm(bytes: &[u8]) -> String {
    let start: String = String::from_utf8_lossy(bytes.get(..BEGINNING).unwrap_or(bytes)).into_owned();
    let line = start.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let is_text = !line.is_empty() && !line.contains(|c: char| c.is_control() || c == char::REPLACEMENT_CHARACTER);
    match bytes.is_empty() {
        true => "the file is empty".to_owned(),
        false if is_text => format!("the file is a text that begins with '{}'", clean(line.trim(), BEGINNING)),
        false => "the file does not begin as WebAssembly does".to_owned(),
    }
}

/// Returns the size of the instance contexts of a component, or an error if no round could have that much.
fn contexts(bytes: &[u8]) -> Result<usize, LoadError> {
    let cost = InstanceCost::of(bytes).map_err(|why| LoadError::Invalid(clean(&why, 1024)))?;
    if cost.instances > INSTANCES as u64 {
        return Err(LoadError::Instances(format!("{} core instances (at most {INSTANCES})", cost.instances)));
    }
    usize::try_from(cost.bytes).ok().filter(|bytes| *bytes <= CONTEXTS).ok_or_else(|| {
        LoadError::Instances(format!(
            "instances whose globals and functions take {} bytes (at most {CONTEXTS})",
            cost.bytes
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_files_are_named_in_words() {
        let why = |bytes: &[u8]| judge(bytes).err().unwrap().to_string();
        let yaml = "not a WebAssembly component: the file is a text that begins with 'apiVersion: akri.sh/v0'";
        assert_eq!(why(b"\napiVersion: akri.sh/v0\nkind: Configuration\n"), yaml);
        assert_eq!(why(b""), "not a WebAssembly component: the file is empty");
        assert_eq!(why(b"\x7fELF\x02\x01"), "not a WebAssembly component: the file does not begin as WebAssembly does");
        assert!(why(&[b'x'; 4000]).len() < 200);
    }

    #[test]
    fn digests_are_lower_hex() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(hex(&Sha256::digest([])), empty);
    }
}
