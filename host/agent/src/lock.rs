//! The lock of a state directory: a second agent waits for the first to end, as in a rolling update (rule 6).

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::Path;
use std::time::Duration;

use tokio::time::sleep;
use tracing::warn;

/// Name of the lock file. Every state directory has one.
pub const FILE: &str = "lock";

/// Pause between attempts.
const RETRY: Duration = Duration::from_millis(200);

/// Waits for the lock of a state directory. It is held until the file is dropped, or the process ends.
pub async fn acquire(state: &Path) -> Result<File, String> {
    let path = state.join(FILE);
    let failed = |reason: io::Error| {
        format!("cannot lock '{}': {reason}; set another state directory with --state-dir", path.display())
    };
    let mut options = OpenOptions::new();
    let mut file = options.read(true).write(true).create(true).truncate(false).open(&path).map_err(failed)?;
    let mut warned = false;
    while let Err(error) = file.try_lock() {
        if let TryLockError::Error(error) = error {
            return Err(failed(error));
        }
        if !warned {
            let holder = holder(&mut file);
            warn!(
                "state directory '{}' is locked by the agent with pid {holder}; waiting for it to end",
                state.display()
            );
            warned = true;
        }
        sleep(RETRY).await;
    }
    sign(&mut file).map_err(failed)?;
    Ok(file)
}

/// Returns whether the lock of a state directory is free; false if that can't be determined.
pub fn is_free(state: &Path) -> bool {
    match File::open(state.join(FILE)) {
        // A shared lock for a moment: an agent that starts just then retries.
        Ok(file) => file.try_lock_shared().is_ok(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
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
