//! One agent for one state directory: a second one waits until the first is gone, as in a rolling update (rule 6).

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use tokio::time::sleep;
use tracing::warn;

/// Pause between tries.
const RETRY: Duration = Duration::from_millis(200);

/// The lock could not be tried.
#[derive(Debug, thiserror::Error)]
#[error("cannot lock '{}': {reason}; name another state directory with --state-dir", path.display())]
pub struct LockError {
    path: PathBuf,
    reason: io::Error,
}

/// Held until it is dropped, or the process ends in whatever way.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// Waits for the lock of a state directory.
pub async fn acquire(state: &Path) -> Result<Lock, LockError> {
    let path = state.join("lock");
    let failed = |reason| LockError { path: path.clone(), reason };
    let mut options = OpenOptions::new();
    let mut file = options.read(true).write(true).create(true).truncate(false).open(&path).map_err(failed)?;
    let mut told = false;
    while !try_lock(&file).map_err(failed)? {
        if !told {
            let holder = holder(&mut file);
            warn!(
                "state directory '{}' is in use by the agent with pid {holder}: waiting for it to end",
                state.display()
            );
            told = true;
        }
        sleep(RETRY).await;
    }
    sign(&mut file).map_err(failed)?;
    Ok(Lock { _file: file })
}

/// Whether nobody holds the lock of a state directory; false if that can't be told.
pub fn is_free(state: &Path) -> bool {
    match File::open(state.join("lock")) {
        // Beside others who look, and let go at once: an agent that starts just then tries again.
        Ok(file) => flock_now(&file, FlockOperation::NonBlockingLockShared).unwrap_or(false),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

fn try_lock(file: &File) -> io::Result<bool> {
    flock_now(file, FlockOperation::NonBlockingLockExclusive)
}

/// Whether it could be had at once.
fn flock_now(file: &File, operation: FlockOperation) -> io::Result<bool> {
    match flock(file, operation) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn holder(file: &mut File) -> String {
    let mut pid = String::new();
    let read = file.rewind().and_then(|()| file.read_to_string(&mut pid));
    if read.is_ok() && !pid.trim().is_empty() { pid.trim().to_owned() } else { "unknown".to_owned() }
}

fn sign(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}
