//! The result of a round: devices, notes and remarks. Everything is bounded when it is added, since others determine
//! the number of servers and their texts.

use std::collections::{BTreeMap, BTreeSet};

use crate::candidate::Candidate;
use crate::device::Device;
use crate::network::Error;
use crate::url::Url;

/// Maximum number of devices: the default limit of the host.
const MAX_DEVICES: usize = 4096;

/// Limit on all devices together, in bytes: half of the host's limit.
const MAX_BYTES: usize = 8 << 20;

/// Maximum number of remarks; the host accepts 64 lines a round.
const MAX_REMARKS: usize = 32;

/// Maximum number of servers with a note; the host shows fewer.
const MAX_NOTES: usize = 512;

/// Limit on the text about one server, in bytes.
const MAX_TEXT: usize = 512;

/// The result of a round.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The devices in ascending order of id.
    pub devices: Vec<Device>,
    /// Problems that require action.
    pub notes: Vec<Note>,
    /// Indices of discovery URLs whose servers are kept unchanged.
    pub kept: BTreeSet<usize>,
    /// The sources where no server responds: a server that listed itself there, and nothing else, is gone.
    pub silent: BTreeSet<usize>,
    /// Lines for the log: servers that are listed and absent, which is common, or that do not identify themselves.
    pub remarks: Vec<String>,
    /// Number of omitted remarks.
    pub unsaid: usize,
    /// Listed servers that the filter of names leaves out.
    pub left_out: Vec<String>,
}

/// A note, with the index of the discovery URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The index of the discovery URL.
    pub origin: usize,
    /// A CamelCase word for programs.
    pub reason: &'static str,
    /// A sentence for people.
    pub message: String,
}

/// The result of checking a candidate.
#[derive(Debug)]
pub enum Check {
    /// It responded.
    There(Device),
    /// A server at the device's URL refuses clients without security: most likely it is the candidate.
    Secured(Device, Failures),
    /// Its state is unknown.
    Unknown(Why),
    /// It is absent.
    Absent(Failures),
}

/// The failures by URL.
pub type Failures = Vec<(Url, Error)>;

/// The reason for an unknown state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// It was not queried.
    NotReached,
    /// It has no free connection.
    Busy,
    /// It exceeds a limit.
    NoRoom,
}

/// The results so far.
#[derive(Debug, Default)]
pub struct Findings {
    devices: BTreeMap<String, Device>,
    bytes: usize,
    /// Candidates that require security by URL, with the discovery URLs that list them.
    secured: BTreeMap<String, Vec<(Device, Vec<usize>)>>,
    left: BTreeMap<(usize, Why), usize>,
    report: Report,
}

impl Why {
    fn reason(self) -> &'static str {
        match self {
            Self::NotReached => Error::NotReached.reason(),
            Self::Busy => "Busy",
            Self::NoRoom => Error::NoRoom.reason(),
        }
    }

    fn message(self, count: usize) -> String {
        match self {
            Self::NotReached => format!("{count} of the servers listed there were {}", Error::NotReached),
            Self::Busy => format!("{count} of the servers listed there have no connection left to say who they are"),
            Self::NoRoom => format!("{count} of the servers listed there were {}", Error::NoRoom),
        }
    }
}

impl Findings {
    /// Creates the results of a round in which some discovery servers failed: their devices are kept.
    pub fn without(failed: impl IntoIterator<Item = (usize, Error)>) -> Self {
        let mut findings = Self::default();
        for (origin, error) in failed {
            let (reason, message) = (error.reason(), error.to_string());
            findings.report.notes.push(Note { origin, reason, message });
            findings.report.kept.insert(origin);
            if error.is_silence() {
                findings.report.silent.insert(origin);
            }
        }
        findings
    }

    /// Adds the result of a check.
    pub fn add(&mut self, candidate: &Candidate, check: Check) {
        match check {
            Check::There(device) => self.add_device(device, &candidate.origins),
            Check::Secured(device, failures) => {
                self.remark(remark(candidate, "is there, but does not say who it is", &failures));
                let at = self.secured.entry(device.url().to_owned()).or_default();
                at.push((device, candidate.origins.clone()));
            }
            Check::Unknown(why) => self.leave(&candidate.origins, why),
            Check::Absent(failures) => self.add_absent(candidate, &failures),
        }
        self.note_duplicates(candidate);
    }

    /// Adds a device. Of two with one id the first in order wins, whichever was found first; a device stays if its
    /// replacement does not fit.
    fn add_device(&mut self, device: Device, origins: &[usize]) {
        let known = self.devices.get(&device.id);
        if known.is_some_and(|known| *known <= device) {
            return;
        }
        let is_full = known.is_none() && self.devices.len() >= MAX_DEVICES;
        let others = self.bytes - known.map(Device::size).unwrap_or_default();
        let bytes = others + device.size();
        if is_full || bytes > MAX_BYTES {
            return self.leave(origins, Why::NoRoom);
        }
        self.bytes = bytes;
        self.devices.insert(device.id.clone(), device);
    }

    fn leave(&mut self, origins: &[usize], why: Why) {
        for &origin in origins {
            *self.left.entry((origin, why)).or_default() += 1;
        }
    }

    /// Adds an absent server. Absence is no problem; a server that may not be queried at any URL is: it should be
    /// granted or filtered out.
    fn add_absent(&mut self, candidate: &Candidate, failures: &Failures) {
        let message = remark(candidate, "is listed, but was not found", failures);
        let refused = |error: &Error| matches!(error, Error::NotGranted(_));
        let nowhere = |error: &Error| matches!(error, Error::NotGranted(_) | Error::NameNotResolved(_));
        let is_refused =
            failures.iter().any(|(_, error)| refused(error)) && failures.iter().all(|(_, error)| nowhere(error));
        if is_refused {
            self.note(&candidate.origins, "NotGranted", message);
        } else {
            self.remark(message);
        }
    }

    /// Notes two servers with the same URI, which are one device.
    fn note_duplicates(&mut self, candidate: &Candidate) {
        let mut urls: Vec<&Url> = candidate.itself_at().collect();
        urls.dedup();
        if let [first, second, ..] = urls.as_slice() {
            let uri = &candidate.application.uri;
            let message = format!(
                "who is at {first} and who is at {second} both say they are '{uri}': they are one device; give them \
                         URIs of their own, or set identifyBy: Url"
            );
            self.note(&candidate.origins, "DuplicateApplicationUri", message);
        }
    }

    fn note(&mut self, origins: &[usize], reason: &'static str, message: String) {
        if let Some(&origin) = origins.first().filter(|_| self.report.notes.len() < MAX_NOTES) {
            self.report.notes.push(Note { origin, reason, message: cut(message) });
        }
    }

    fn remark(&mut self, text: String) {
        if self.report.remarks.len() < MAX_REMARKS {
            self.report.remarks.push(cut(text));
        } else {
            self.report.unsaid += 1;
        }
    }

    /// Returns the result of the round.
    pub fn report(mut self) -> Report {
        for (url, mut at) in std::mem::take(&mut self.secured) {
            match at.pop() {
                Some((device, origins)) if at.is_empty() => self.add_device(device, &origins),
                Some((last, origins)) => self.add_ambiguous(&url, &last, &origins, &at),
                None => {}
            }
        }
        let mut report = self.report;
        report.kept.extend(self.left.keys().map(|(origin, _)| *origin));
        let note = |((origin, why), count): (&(usize, Why), &usize)| Note {
            origin: *origin,
            reason: why.reason(),
            message: why.message(*count),
        };
        report.notes.extend(self.left.iter().map(note));
        report.notes.sort_by_key(|note| note.origin);
        report.remarks.sort();
        report.devices = self.devices.into_values().collect();
        report
    }

    /// Notes several candidates at one URL that does not identify its server; nothing is added or removed.
    fn add_ambiguous(&mut self, url: &str, one: &Device, origins: &[usize], others: &[(Device, Vec<usize>)]) {
        let other = others.first().map(|(device, _)| device.id.as_str()).unwrap_or_default();
        let message =
            format!("'{}' and '{other}' are listed at {url}, where nobody says without security who it is", one.id);
        self.note(origins, "Ambiguous", message);
        let others = others.iter().flat_map(|(_, origins)| origins);
        self.report.kept.extend(origins.iter().chain(others));
    }
}

fn remark(candidate: &Candidate, what: &str, failures: &Failures) -> String {
    let why: Vec<String> = failures.iter().map(|(url, error)| format!("{url}: {error}")).collect();
    let why = if why.is_empty() { "it has no URL of opc.tcp".to_owned() } else { why.join("; ") };
    format!("'{}' {what}: {why}", candidate.application.uri)
}

fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_TEXT));
    text
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
