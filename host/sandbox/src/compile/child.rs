//! The compiler's process, seen from outside.

use std::io::{Read, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use akri_engine::{LoadError, Platform};
use akri_model::grant::CompileLimits;
use akri_model::text::clean;
use rustix::process::Signal;

/// Wall-clock time for each second of processor time: others may be busy.
const WALL_CLOCK_FACTOR: u32 = 10;
/// Interval of polling the process.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Most threads of it: the stack of each counts as memory.
const THREADS: usize = 4;
/// Bytes of its messages.
const MESSAGE: usize = 16 << 10;

/// Compiles a component in a process that the `program` starts, into a directory. The process is killed if it takes much longer
/// than `longest`. Blocks.
///
/// # Errors
/// If the component is refused, or goes over a limit.
pub fn compile(
    program: &Path,
    component: &[u8],
    platform: Platform,
    limits: &CompileLimits,
    longest: Duration,
    output: &Path,
) -> Result<(), LoadError> {
    let longest = longest * WALL_CLOCK_FACTOR;
    let unavailable = |what: &dyn std::fmt::Display| LoadError::Unavailable(what.to_string());
    let mut command = Command::new(program);
    command.args(["handler", "compile", "--output"]).arg(output);
    if platform != Platform::here() {
        command.arg("--target").arg(platform.to_string());
    }
    command.arg("--memory").arg(limits.memory_bytes.to_string());
    command.arg("--time").arg(limits.time.as_secs().to_string());
    command.env_clear().current_dir("/").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let threads = thread::available_parallelism().map_or(1, |processors| processors.get().min(THREADS));
    command.env("RAYON_NUM_THREADS", threads.to_string());
    command.process_group(0); // Ctrl-C at a terminal is for the agent, with which it ends
    let mut child = command.spawn().map_err(|error| unavailable(&error))?;
    let (stdin, stderr) = (child.stdin.take(), child.stderr.take());
    let (status, message) = thread::scope(|scope| {
        // It may end before it has read all.
        scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(component)));
        let message = scope.spawn(move || stderr.map(tail).unwrap_or_default());
        (wait(&mut child, longest), message.join().unwrap_or_default())
    });
    match status.map_err(|error| unavailable(&error))? {
        Some(status) => compile_result(status, &message, limits),
        None => Err(unavailable(&format_args!(
            "the compiler had not finished after {longest:?}: others keep the processors busy, or it hangs"
        ))),
    }
}

/// Reads the start of a process's output and discards the rest.
fn tail(mut from: impl Read) -> String {
    let mut message = Vec::new();
    let _ = from.by_ref().take(MESSAGE as u64).read_to_end(&mut message);
    let _ = std::io::copy(&mut from, &mut std::io::sink());
    String::from_utf8_lossy(&message).into_owned()
}

/// Waits for its end, or ends it; `None` if it took too long.
fn wait(child: &mut Child, longest: Duration) -> std::io::Result<Option<ExitStatus>> {
    let end = Instant::now() + longest;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= end {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(POLL_INTERVAL);
    }
}

fn compile_result(status: ExitStatus, message: &str, limits: &CompileLimits) -> Result<(), LoadError> {
    if status.success() {
        Ok(())
    } else if let Some(error) = ended_by_signal(status, limits) {
        Err(error)
    } else if message.contains("Cannot allocate memory") {
        Err(LoadError::Memory(limits.memory_bytes))
    } else {
        let error = message.rsplit_once("error: ").map_or(message, |(_, error)| error);
        Err(LoadError::Refused(clean(error, 1024)))
    }
}

/// Returns the reason why a signal has ended a compiler, if one has: mostly a limit.
fn ended_by_signal(status: ExitStatus, limits: &CompileLimits) -> Option<LoadError> {
    let signal = status.signal()?;
    Some(match () {
        () if signal == Signal::XCPU.as_raw() => LoadError::Time(limits.time),
        // The kernel takes the compiler first if memory is short, which says nothing of the component.
        () if signal == Signal::KILL.as_raw() => LoadError::Unavailable(
            "its compiler was killed: the node or the agent's pod may be short of memory".to_owned(),
        ),
        () => LoadError::Memory(limits.memory_bytes), // the allocator ends the process that gets no more
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::write_script;

    fn limits() -> CompileLimits {
        CompileLimits { memory_bytes: 64 << 20, time: Duration::from_millis(100) }
    }

    /// Runs a shell script in place of the compiler.
    fn ended(script: &str, longest: Duration) -> Result<(), LoadError> {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("compiler");
        write_script(&program, script);
        compile(&program, &vec![0; 1 << 20], Platform::here(), &limits(), longest, directory.path())
    }

    #[test]
    fn exit_status_of_the_compiler_names_the_cause() {
        let ended = |script| ended(script, Duration::from_secs(12));
        assert_eq!(ended("exit 0"), Ok(()));
        assert_eq!(ended("kill -XCPU $$"), Err(LoadError::Time(Duration::from_millis(100))));
        assert_eq!(ended("kill -ABRT $$"), Err(LoadError::Memory(64 << 20)));
        assert!(matches!(ended("kill -KILL $$"), Err(LoadError::Unavailable(_))), "it may succeed another time");
        let script = "echo 'warning: x' >&2; echo 'error: no magic' >&2; exit 1";
        assert_eq!(ended(script), Err(LoadError::Refused("no magic".to_owned())));
        assert!(matches!(
            compile(Path::new("/nonexistent"), &[], Platform::here(), &limits(), limits().time, Path::new("/")),
            Err(LoadError::Unavailable(_))
        ));
    }

    #[test]
    fn compiler_that_hangs_is_killed() {
        for script in ["exec sleep 3600", "exec yes >&2"] {
            let Err(LoadError::Unavailable(why)) = ended(script, limits().time) else { panic!("{script}") };
            assert!(why.contains("had not finished after 1s"), "{why}");
        }
    }
}
