//! The journal: Instances of this node and the claims on their slots, which survive a crash (rule 28).
//!
//! One append-only file. A line is a checksum and a record; the last record of an Instance counts. A claim is on disk
//! before the kubelet hears of it, so `kill -9` and a power cut lose none. A line torn by a crash is the last one and is
//! dropped; any other damage sets the file aside for a person to look at, and the readable part is used.

mod format;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use akri_model::claim::{Claims, Entry};
use akri_model::names::Key;
use akri_model::reclaim::ObservedUsers;
use akri_node::{if_found, regular_file, replace};
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};
use tracing::{debug, info, warn};

use format::{FORMAT, Header, Record, Replayed, line_of, parse_line, put_line, replay};

/// The file is written anew when it is this large, and four times as large as when it was last written anew.
const COMPACT_AT: u64 = 1 << 20;

/// Requests of one write.
const BATCH: usize = 256;

/// Pause before a failed write is repeated without another one.
const RETRY: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 5_000 });

fn failed(action: &str, path: &Path, error: &io::Error) -> String {
    format!("cannot {action} journal '{}': {error}", path.display())
}

/// Entries to write, and those to forget after that.
struct Request {
    entries: Vec<Entry>,
    forgotten: Vec<Key>,
    done: oneshot::Sender<Result<(), String>>,
}

/// A handle to the journal's writer; cheap to clone.
#[derive(Debug, Clone)]
pub struct Journal {
    writes: mpsc::Sender<Request>,
    /// The reason why the last write failed, if it did.
    pub(crate) failure: watch::Receiver<Option<String>>,
    live: Live,
    /// Lines were lost when it was opened.
    pub damaged: bool,
}

/// The last line of each Instance.
type Live = Arc<Mutex<BTreeMap<Key, String>>>;

/// Returns the claims in the journal of a state directory, which another process may be writing.
pub fn claims(state: &Path) -> BTreeMap<Key, Claims> {
    let text = regular_file::read(&state.join("journal.jsonl"), u64::MAX).unwrap_or_default();
    let entries = replay(&String::from_utf8_lossy(&text)).entries;
    entries.into_iter().map(|(key, entry)| (key, entry.claims)).collect()
}

impl Journal {
    /// Opens the journal of a state directory and returns its entries.
    pub fn open(state: &Path) -> Result<(Self, BTreeMap<Key, Entry>), String> {
        let path = state.join("journal.jsonl");
        let boot = boot_id();
        let (entries, damaged) = read(&path, &boot)?;
        let live = Live::default();
        live.lock().extend(entries.iter().map(|(key, entry)| (key.clone(), put_line(entry))));
        let mut file = LogFile { path, file: None, size: 0, rewritten: 0, live: live.clone(), boot };
        file.rewrite()?;
        // Writers wait for the answer, so that there are few requests.
        let (writes, requests) = mpsc::channel();
        let failing = watch::Sender::new(None);
        let failure = failing.subscribe();
        let writer = thread::Builder::new().name("akri-journal".to_owned());
        let started = writer.spawn(move || write_all(file, &requests, &failing));
        started.map_err(|error| failed("start the writer of", &state.join("journal.jsonl"), &error))?;
        Ok((Self { writes, failure, live, damaged }, entries))
    }

    /// Returns the entry of an Instance, which may not be on the disk yet.
    pub fn entry(&self, key: &Key) -> Option<Entry> {
        let line = self.live.lock().get(key).cloned()?;
        entry_in(&line)
    }

    /// Returns the entries of the Instances of a Configuration, likewise.
    pub(crate) fn entries(&self, configuration: &Key) -> Vec<Entry> {
        let entries = self.live.lock().values().filter_map(|line| entry_in(line)).collect::<Vec<_>>();
        entries.into_iter().filter(|entry| entry.configuration_key() == *configuration).collect()
    }

    /// Writes the entry of an Instance. It is on disk when this returns. A write that failed may still take effect later,
    /// so a caller that undoes it writes the undone state, too.
    pub async fn put(&self, entry: Entry) -> Result<(), String> {
        self.write_all(vec![entry], Vec::new()).await
    }

    /// Writes several entries and forgets others after that, with one sync of the disk, in the order of the calls: what is
    /// returned only waits for the end.
    pub fn write_all(
        &self,
        entries: Vec<Entry>,
        forgotten: Vec<Key>,
    ) -> impl Future<Output = Result<(), String>> + Send + use<> {
        let (done, result) = oneshot::channel();
        let sent = match entries.is_empty() && forgotten.is_empty() {
            true => done.send(Ok(())).map_err(drop),
            false => self.writes.send(Request { entries, forgotten, done }).map_err(drop),
        };
        let not_written = |why| format!("the journal can't be written: {why}");
        let stopped = move || not_written("its writer has stopped".to_owned());
        async move {
            sent.map_err(|()| stopped())?;
            result.await.map_err(|_| stopped())?.map_err(not_written)
        }
    }
}

fn entry_in(line: &str) -> Option<Entry> {
    match parse_line(line.trim_end())? {
        Record::Put(entry) => Some(*entry),
        Record::Remove(_) | Record::Header(_) => None,
    }
}

/// Writes what is asked for; what comes in while the disk is busy is one write with one sync. A failure is logged once,
/// and the write is repeated until it succeeds.
fn write_all(mut file: LogFile, requests: &mpsc::Receiver<Request>, failure: &watch::Sender<Option<String>>) {
    let mut refused = 0;
    loop {
        let is_failing = failure.borrow().is_some();
        let received = match is_failing {
            true => requests.recv_timeout(RETRY),
            false => requests.recv().map_err(RecvTimeoutError::from),
        };
        if matches!(received, Err(RecvTimeoutError::Disconnected)) {
            return;
        }
        let batch = received.into_iter().chain(requests.try_iter()).take(BATCH);
        let applied = batch.map(|Request { entries, forgotten, done }| (file.apply(entries, forgotten), done));
        let (lines, waiting): (String, Vec<_>) = applied.unzip();
        let result = file.append(&lines);
        refused += if result.is_err() { waiting.len() } else { 0 };
        show(failure, result.as_ref().err(), refused);
        if result.is_ok() {
            refused = 0;
        }
        for done in waiting {
            let _ = done.send(result.clone()); // whoever asked may have given up
        }
    }
}

/// Shows the error of the last write, and logs when there is one and when there is none any more.
fn show(failure: &watch::Sender<Option<String>>, error: Option<&String>, refused: usize) {
    let before = failure.borrow().clone();
    match (before, error) {
        (None, None) => return,
        (None, Some(error)) => warn!("{error}; retrying, and refusing claims until then"),
        (Some(_), Some(error)) => debug!(refused, "{error}"),
        (Some(_), None) => info!(refused, "the journal is written again"),
    }
    let now = error.cloned();
    failure.send_if_modified(|shown| std::mem::replace(shown, now.clone()) != now);
}

struct LogFile {
    path: PathBuf,
    /// None after a failed write: half a line may be there, so the next write starts a new file.
    file: Option<File>,
    size: u64,
    /// Its size when it was written anew.
    rewritten: u64,
    live: Live,
    boot: String,
}

impl LogFile {
    fn append(&mut self, text: &str) -> Result<(), String> {
        if self.file.is_none() || self.size > COMPACT_AT.max(self.rewritten.saturating_mul(4)) {
            return self.rewrite();
        }
        let write = |file: &mut File| file.write_all(text.as_bytes()).and_then(|()| file.sync_data());
        let result = self.file.as_mut().map_or(Ok(()), write);
        if let Err(error) = result {
            self.file = None;
            return Err(failed("write", &self.path, &error));
        }
        self.size += text.len() as u64;
        Ok(())
    }

    /// Changes what is live, and returns the lines that say so.
    fn apply(&self, entries: Vec<Entry>, forgotten: Vec<Key>) -> String {
        let mut text = String::new();
        for entry in entries {
            let line = put_line(&entry);
            text += &line;
            self.live.lock().insert(entry.key, line);
        }
        for key in forgotten {
            self.live.lock().remove(&key);
            text += &line_of(&Record::Remove(key));
        }
        text
    }

    /// Writes what is live to a new file and puts it in the old one's place.
    fn rewrite(&mut self) -> Result<(), String> {
        self.file = None; // after a failure it may no longer be the file of that name
        let header = Header { format: FORMAT, boot: self.boot.clone() };
        let header = line_of(&Record::Header(header));
        let text: String = [header.as_str()].into_iter().chain(self.live.lock().values().map(String::as_str)).collect();
        let replaced = replace::write(&self.path, text.as_bytes(), true)
            .and_then(|()| OpenOptions::new().append(true).open(&self.path));
        self.file = Some(replaced.map_err(|error| failed("write", &self.path, &error))?);
        self.size = text.len() as u64;
        self.rewritten = self.size;
        Ok(())
    }
}

/// The kernel's identifier of this boot; empty where there is none.
fn boot_id() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}

fn read(path: &Path, boot: &str) -> Result<(BTreeMap<Key, Entry>, bool), String> {
    let found = if_found(regular_file::read(path, u64::MAX)).map_err(|error| failed("read", path, &error))?;
    let Some(bytes) = found else { return Ok(Default::default()) };
    let Replayed { mut entries, header, mut damaged } = replay(&String::from_utf8_lossy(&bytes));
    if let Some(header) = header.as_ref().filter(|header| header.format > FORMAT) {
        warn!("journal '{}' was written by a newer agent (format {})", path.display(), header.format);
        damaged = damaged.max(1); // it may say more than this agent understands
    }
    if damaged > 0 {
        set_aside(path, damaged)?;
    }
    if header.is_some_and(|header| header.boot != boot) {
        let claims = entries.values_mut().flat_map(|entry| entry.claims.values_mut());
        // No container of before runs: those that come back are listed (rule 47).
        claims.for_each(|claim| claim.users = ObservedUsers { seen: true, ..ObservedUsers::default() });
    }
    Ok((entries, damaged > 0))
}

fn set_aside(path: &Path, damaged: usize) -> Result<(), String> {
    let aside = path.with_extension("jsonl.damaged");
    warn!("journal '{}' has {damaged} damaged lines: kept as '{}', the rest is used", path.display(), aside.display());
    fs::copy(path, &aside).map(drop).map_err(|error| failed("set aside", &aside, &error))
}

#[cfg(test)]
mod tests;
