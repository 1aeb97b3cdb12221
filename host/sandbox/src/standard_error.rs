//! The standard error of sandbox processes, in the agent's log.
//!
//! A process that a guest has taken over writes what it likes: all sandbox processes together have one budget over time, and
//! what goes beyond it is read slowly and counted.

use std::io;
use std::os::fd::OwnedFd;
use std::str::FromStr as _;
use std::time::Duration;

use akri_model::text::clean;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::time::{Instant, sleep};
use tracing::Level;

use akri_engine::{LOG_LINE_BYTES, PartialLine, Rates};

/// Bytes of a line.
const LONGEST: usize = 2048;
/// Bytes that are read at once.
const CHUNK: usize = 64 << 10;
/// Pause after each read while lines are dropped.
const PAUSE: Duration = Duration::from_millis(50);
/// Interval of reports of dropped lines.
const REPORT: Duration = Duration::from_secs(10);

/// Passes on the lines that a process writes, until it closes its end.
pub(super) async fn read_lines(from: OwnedFd, rates: Rates, mut log: impl FnMut(Level, &str)) -> io::Result<()> {
    let mut pipe = pipe::Receiver::from_owned_fd(from)?;
    let (mut chunk, mut partial) = (vec![0; CHUNK], PartialLine::default());
    let (mut dropped, mut reported) = (0_u64, None::<Instant>);
    let mut report = |dropped: &mut u64, is_end: bool, log: &mut dyn FnMut(Level, &str)| {
        if *dropped > 0 && (is_end || reported.is_none_or(|last| last.elapsed() >= REPORT)) {
            log(Level::WARN, &format!("it writes more than is logged: {dropped} lines were dropped"));
            (*dropped, reported) = (0, Some(Instant::now()));
        }
    };
    loop {
        let count = pipe.read(&mut chunk).await?;
        if count == 0 {
            report(&mut dropped, true, &mut log);
            return Ok(());
        }
        let before = dropped;
        for line in partial.push(chunk.get(..count).unwrap_or_default(), LONGEST) {
            if rates.log(line.len() + LOG_LINE_BYTES) {
                let (level, message) = level_of(&String::from_utf8_lossy(&line));
                log(level, &clean(&message, LONGEST));
            } else {
                dropped += 1;
            }
        }
        if dropped > before {
            report(&mut dropped, false, &mut log);
            sleep(PAUSE).await;
        }
    }
}

/// Splits a line of the process's log, which begins with the level. Other lines, as those of a panic, are warnings.
fn level_of(line: &str) -> (Level, String) {
    let parts = line.trim_start().split_once(' ');
    let level = parts.and_then(|(level, message)| Some((Level::from_str(level).ok()?, message.to_owned())));
    level.unwrap_or_else(|| (Level::WARN, line.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    async fn lines(written: Vec<u8>) -> Vec<(Level, String)> {
        let (read, mut write) = io::pipe().unwrap();
        let writer = std::thread::spawn(move || write.write_all(&written).unwrap());
        let mut lines = Vec::new();
        let log = |level, line: &str| lines.push((level, line.to_owned()));
        read_lines(read.into(), Rates::default(), log).await.unwrap();
        writer.join().unwrap();
        lines
    }

    #[tokio::test]
    async fn lines_of_a_sandbox_process_have_their_level() {
        let lines = lines(b" INFO started\nERROR a \x1b[31mb\nthread panicked\nINFORMAL text\ncut".to_vec()).await;
        let expected = [
            (Level::INFO, "started"),
            (Level::ERROR, "a  [31mb"),
            (Level::WARN, "thread panicked"),
            (Level::WARN, "INFORMAL text"),
        ];
        assert_eq!(lines, expected.map(|(level, line)| (level, line.to_owned())));
    }

    #[tokio::test] // threat 19
    async fn flood_of_a_sandbox_process_is_dropped_and_reported_once() {
        let flood = [vec![b'x'; 1 << 20], [vec![b'y'; 99], vec![b'\n']].concat().repeat(10_000)].concat();
        let start = Instant::now();
        let lines = lines(flood).await;
        let bytes: usize = lines.iter().map(|(_, line)| line.len()).sum();
        assert!((100_000..300_000).contains(&bytes), "{bytes}");
        assert!(lines.iter().all(|(_, line)| line.len() <= LONGEST));
        let reports = lines.iter().filter(|(_, line)| line.contains("lines were dropped")).count();
        let later = usize::try_from(start.elapsed().as_secs() / REPORT.as_secs()).unwrap();
        assert!((2..=2 + later).contains(&reports), "{reports}: one when it begins, and one at the end");
    }
}
