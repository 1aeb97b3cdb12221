//! Loads a component as an agent does: within `limits.compile` of its DiscoveryHandler. One that needs more is loaded all the
//! same, with what an agent would say.
//!
//! Code in the cache says nothing of what it took to make it. So beside the cache there is a file for each component, with the
//! limits that were tried.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};

use akri_model::grant::CompileLimits;
use akri_sandbox::{CompileError, Component, Host, LoadError, PrecompileError, precompile};
use anyhow::Context as _;

use super::PATIENT;
use crate::agent::OWN_PROGRAM;
use crate::discover::load::cache_dir;

/// Directory of the files, in that of compiled components.
const TRIED: &str = "tried-limits";
/// Limits that an interpreter needs.
const LARGE: CompileLimits = CompileLimits { memory_bytes: 1 << 30, time: Duration::from_secs(180) };

/// A component that was loaded.
pub(super) struct Judged {
    pub(super) component: Component,
    /// The time to load it, without what was only tried.
    pub(super) took: Duration,
    /// Set if an agent would refuse to compile it.
    pub(super) refusal: Option<Refusal>,
}

/// The reason why an agent would refuse to compile a component, with a remedy.
#[derive(Debug, Clone, thiserror::Error)]
#[error("an agent would refuse the component: {error}. This is enough, below its spec:\n  {enough}")]
pub(super) struct Refusal {
    error: CompileError,
    /// A field of the DiscoveryHandler's spec with limits that are large enough.
    pub(super) enough: String,
}

/// Loads a component within its limits, or else within larger ones.
pub(super) async fn load(host: &Host, component: File<'_>, limits: &CompileLimits) -> Result<Judged, LoadError> {
    let Some(directory) = cache_dir() else {
        let (component, took) = load_within(host, component.bytes, &PATIENT).await?;
        return Ok(Judged { component, took, refusal: None });
    };
    let tried =
        Tried { file: directory.join(TRIED).join(component.digest), path: component.path, directory: &directory };
    let (mut refused, mut last) = (None, CompileError::Time(limits.time));
    for candidate in candidates(limits) {
        let loaded = tried.load(host, component.bytes.clone(), &candidate).await;
        match loaded.as_ref().err().and_then(LoadError::compile_error) {
            Some(error @ (CompileError::Memory(_) | CompileError::Time(_))) => {
                refused.get_or_insert(error.clone());
                last = error.clone();
            }
            _ => {
                let refusal = refused.map(|error| Refusal { error, enough: yaml(&candidate) });
                let (component, took) = loaded?;
                return Ok(Judged { component, took, refusal });
            }
        }
    }
    Err(last.into())
}

async fn load_within(host: &Host, bytes: Vec<u8>, limits: &CompileLimits) -> Result<(Component, Duration), LoadError> {
    let begun = Instant::now();
    Ok((host.load_within(bytes, limits).await?, begun.elapsed()))
}

/// The bytes of a component's file.
pub(super) struct File<'a> {
    pub(super) path: &'a Path,
    pub(super) bytes: Vec<u8>,
    pub(super) digest: &'a str,
}

/// Returns the limits to try, each at least as large as the one before.
fn candidates(limits: &CompileLimits) -> Vec<CompileLimits> {
    let mut candidates = vec![limits.clone()];
    for larger in [CompileLimits::default(), LARGE, PATIENT] {
        candidates.push(CompileLimits {
            memory_bytes: larger.memory_bytes.max(limits.memory_bytes),
            time: larger.time.max(limits.time),
        });
    }
    candidates.dedup();
    candidates
}

/// The limits that were tried for a component.
struct Tried<'a> {
    file: PathBuf,
    path: &'a Path,
    directory: &'a Path,
}

impl Tried<'_> {
    /// Loads the component if it can be compiled within the limits, also if there is code of it.
    async fn load(
        &self,
        host: &Host,
        bytes: Vec<u8>,
        limits: &CompileLimits,
    ) -> Result<(Component, Duration), LoadError> {
        let known = self.known(limits);
        if let Some(Err(error)) = known {
            return Err(error.into());
        }
        let loaded = load_within(host, bytes, limits).await;
        let verdict = match &loaded {
            _ if known.is_some() => return loaded,
            Ok((component, _)) if component.was_compiled() => Ok(()),
            Ok(_) => self.compile(limits).await,
            Err(error) => match error.compile_error() {
                Some(error) => Err(error.clone()),
                None => return loaded,
            },
        };
        self.note(limits, &verdict);
        match verdict {
            Err(error @ (CompileError::Memory(_) | CompileError::Time(_))) => Err(error.into()),
            _ => loaded,
        }
    }

    /// Compiles the component and discards the code.
    async fn compile(&self, limits: &CompileLimits) -> Result<(), CompileError> {
        // By this name the next host removes it if this process is killed.
        let scratch = self.directory.join(format!("scratch-{}-limits", std::process::id()));
        let (file, limits) = (self.path.to_owned(), limits.clone());
        let compile = move || {
            let compiled = precompile(Path::new(OWN_PROGRAM), &[file], &scratch, &limits);
            let _ = fs::remove_dir_all(&scratch);
            compiled
        };
        match tokio::task::spawn_blocking(compile).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(PrecompileError::Compile { source, .. })) => Err(source),
            Ok(Err(error)) => Err(CompileError::Unavailable(error.to_string())),
            Err(error) => Err(CompileError::Unavailable(error.to_string())),
        }
    }

    fn known(&self, limits: &CompileLimits) -> Option<Result<(), CompileError>> {
        let text = fs::read_to_string(&self.file).ok()?;
        let line = line(limits);
        match text.lines().find_map(|known| known.strip_prefix(&line))? {
            "enough" => Some(Ok(())),
            "memory" => Some(Err(CompileError::Memory(limits.memory_bytes))),
            _ => None,
        }
    }

    /// Notes what came of it. Without the note it is tried again.
    fn note(&self, limits: &CompileLimits, verdict: &Result<(), CompileError>) {
        let verdict = match verdict {
            Ok(()) => "enough",
            Err(CompileError::Memory(_)) => "memory",
            // A busy machine, or its lack of memory, may end the compiler as well.
            Err(_) => return,
        };
        let note = || {
            self.file.parent().map_or(Ok(()), fs::create_dir_all)?;
            let mut file = OpenOptions::new().append(true).create(true).open(&self.file)?;
            file.write_all(format!("{}{verdict}\n", line(limits)).as_bytes())
        };
        let _ = note().context("cannot note it").inspect_err(|error| tracing::debug!("{error:#}"));
    }
}

/// Returns the start of the line for limits. Another program may need more, or less.
fn line(limits: &CompileLimits) -> String {
    let program = fs::metadata(OWN_PROGRAM).and_then(|program| program.modified()).ok();
    let built = program.and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default().as_nanos();
    format!("{built} {} {} ", limits.memory_bytes, limits.time.as_secs())
}

/// Returns limits as they are written in a DiscoveryHandler.
fn yaml(limits: &CompileLimits) -> String {
    let units = [("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10), ("", 1)];
    let unit = units.into_iter().find(|(_, unit)| limits.memory_bytes.is_multiple_of(*unit)).unwrap_or(("", 1));
    let seconds = limits.time.as_secs();
    let time = if seconds.is_multiple_of(60) { format!("{}m", seconds / 60) } else { format!("{seconds}s") };
    format!("limits: {{compile: {{memory: {}{}, time: {time}}}}}", limits.memory_bytes / unit.1, unit.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(mebibytes: usize, seconds: u64) -> CompileLimits {
        CompileLimits { memory_bytes: mebibytes << 20, time: Duration::from_secs(seconds) }
    }

    #[test]
    fn candidates_are_never_below_the_given_limits() {
        for (given, expected) in [
            (limits(32, 30), vec![limits(32, 30), limits(256, 30), limits(1024, 180), limits(2048, 300)]),
            (limits(256, 30), vec![limits(256, 30), limits(1024, 180), limits(2048, 300)]),
            (limits(4096, 10), vec![limits(4096, 10), limits(4096, 30), limits(4096, 180), limits(4096, 300)]),
            (limits(4096, 600), vec![limits(4096, 600)]),
        ] {
            assert_eq!(candidates(&given), expected);
        }
    }

    #[test]
    fn limits_are_printed_as_a_discovery_handler_has_them() {
        for (limits, expected) in [
            (LARGE, "limits: {compile: {memory: 1Gi, time: 3m}}"),
            (limits(1536, 90), "limits: {compile: {memory: 1536Mi, time: 90s}}"),
        ] {
            assert_eq!(yaml(&limits), expected);
        }
    }
}
