//! What a round came to: the servers that are there, and what is to be said of the others.

use std::collections::{BTreeMap, BTreeSet};

use crate::candidate::Candidate;
use crate::device::Device;
use crate::network::Error;
use crate::url::Url;

/// Bytes of all devices together: half of what the host takes from a round.
const FOUND: usize = 8 << 20;

/// Characters of what is said of one server.
const MAX_REMARK: usize = 512;

/// What a round came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The servers that are there, in ascending order of id.
    pub devices: Vec<Device>,
    /// What is wrong and someone can do something about.
    pub notes: Vec<Note>,
    /// Discovery URLs, by their place in the details, whose servers the round did not find out about.
    pub kept: BTreeSet<usize>,
    /// What the log should have: servers that are listed and not there, since lists are seldom up to date, or that don't
    /// say who they are.
    pub remarks: Vec<String>,
}

/// What is wrong, with the place of the discovery URL in the details.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Where the trouble was learnt.
    pub origin: usize,
    /// A CamelCase word for programs.
    pub reason: &'static str,
    /// A sentence for people.
    pub message: String,
}

/// What the check of a candidate came to.
#[derive(Debug)]
pub enum Check {
    /// It is there.
    There(Device),
    /// It is there by what it answers, but does not say who it is.
    Unwilling(Device, Failures),
    /// The round did not find out.
    NotReached,
    /// It is not there.
    Absent(Failures),
}

/// What went wrong at which URL.
pub type Failures = Vec<(Url, Error)>;

impl Note {
    /// That something is wrong with a discovery URL.
    pub fn of(origin: usize, error: &Error) -> Self {
        Self { origin, reason: error.reason(), message: error.to_string() }
    }
}

impl Report {
    /// Adds what the checks came to.
    pub fn add(&mut self, mut checked: Vec<(&Candidate, Check)>) {
        checked.sort_by(|(a, _), (b, _)| a.application.uri.cmp(&b.application.uri));
        let (mut devices, mut room, mut left) = (BTreeMap::new(), FOUND, Left::default());
        for (candidate, check) in checked {
            let device = match check {
                Check::There(device) => device,
                Check::Unwilling(device, failures) => {
                    self.remarks.push(remark(candidate, "is there, but does not say who it is", &failures));
                    device
                }
                Check::NotReached => {
                    left.add(candidate, Error::NotReached);
                    continue;
                }
                Check::Absent(failures) => {
                    self.add_absent(candidate, &failures);
                    continue;
                }
            };
            match room.checked_sub(device.size()) {
                Some(rest) => {
                    room = rest;
                    devices.entry(device.id.clone()).or_insert(device);
                }
                None => left.add(candidate, Error::NoRoom),
            }
        }
        self.devices = devices.into_values().collect();
        self.kept.extend(left.origins());
        self.notes.extend(left.notes());
    }

    /// A server that is not there is nobody's fault. One that the handler may not ask is something to grant or to filter
    /// out.
    fn add_absent(&mut self, candidate: &Candidate, failures: &Failures) {
        let message = remark(candidate, "is listed, but was not found", failures);
        let refused = failures.iter().any(|(_, error)| matches!(error, Error::NotGranted(_)));
        match candidate.origins.first() {
            Some(&origin) if refused => self.notes.push(Note { origin, reason: "NotGranted", message }),
            _ => self.remarks.push(message),
        }
    }
}

fn remark(candidate: &Candidate, what: &str, failures: &Failures) -> String {
    let why: Vec<String> = failures.iter().map(|(url, error)| format!("{url}: {error}")).collect();
    let text = format!("'{}' {what}: {}", candidate.application.uri, why.join("; "));
    text.chars().take(MAX_REMARK).collect()
}

/// How many servers of which discovery URL the round has to leave as they are, and why.
#[derive(Debug, Default)]
struct Left {
    counts: BTreeMap<(usize, &'static str), (usize, String)>,
}

impl Left {
    fn add(&mut self, candidate: &Candidate, why: Error) {
        for origin in &candidate.origins {
            let (count, _) = self.counts.entry((*origin, why.reason())).or_insert_with(|| (0, why.to_string()));
            *count += 1;
        }
    }

    fn origins(&self) -> impl Iterator<Item = usize> {
        self.counts.keys().map(|(origin, _)| *origin)
    }

    fn notes(&self) -> impl Iterator<Item = Note> {
        self.counts.iter().map(|((origin, reason), (count, why))| {
            let message = format!("{count} of the servers listed there were {why}");
            Note { origin: *origin, reason, message }
        })
    }
}
