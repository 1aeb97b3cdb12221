//! The lines of a journal: a checksum and a record each.

use std::collections::BTreeMap;

use akri_model::claim::Entry;
use akri_model::names::{HashInput, HashLength, Key};
use serde::{Deserialize, Serialize};

/// A line of a journal.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Record {
    Put(Box<Entry>),
    Remove(Key),
    /// The first record of a file. Journals of version 0.1 have none.
    Header(Header),
}

/// The first line of a journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Header {
    pub(super) format: u32,
    /// The kernel's `boot_id`: no container outlives it.
    pub(super) boot: String,
}

/// The format of a journal that this agent writes.
pub(super) const FORMAT: u32 = 2;

/// The content of a journal after all its lines.
#[derive(Debug, Default)]
pub(super) struct Replayed {
    pub(super) entries: BTreeMap<Key, Entry>,
    pub(super) header: Option<Header>,
    /// Lines that cannot be read.
    pub(super) damaged: usize,
}

/// Returns the content of a journal. A last line without its end was torn by a crash, and is dropped.
pub(super) fn replay(text: &str) -> Replayed {
    let mut replayed = Replayed::default();
    let Replayed { entries, header, damaged } = &mut replayed;
    let complete = text.rfind('\n').map_or("", |end| text.get(..end).unwrap_or_default());
    for line in complete.split('\n').filter(|line| !line.is_empty()) {
        match parse_line(line) {
            Some(Record::Put(entry)) => {
                entries.insert(entry.key.clone(), *entry);
            }
            Some(Record::Remove(key)) => {
                entries.remove(&key);
            }
            Some(Record::Header(found)) => *header = Some(found),
            None => *damaged += 1,
        }
    }
    replayed
}

/// Returns the line of an Instance.
pub(super) fn put_line(entry: &Entry) -> String {
    line_of(&Record::Put(Box::new(entry.clone())))
}

/// Returns the line of a record. Keys and values are plain data, so that they always have a JSON form.
pub(super) fn line_of(record: &Record) -> String {
    let json = serde_json::to_string(record).unwrap_or_default();
    format!("{} {json}\n", checksum(&json))
}

pub(super) fn checksum(json: &str) -> String {
    HashInput::new(json, true, "").hash(HashLength::Medium)
}

pub(super) fn parse_line(line: &str) -> Option<Record> {
    let (sum, json) = line.split_once(' ')?;
    (sum == checksum(json)).then(|| serde_json::from_str(json).ok()).flatten()
}
