//! What a round comes to: the servers that are there, and what is to be said of the others. Everything is bounded when it
//! is added, since others choose how many servers are listed and what they say.

use std::collections::{BTreeMap, BTreeSet};

use crate::candidate::Candidate;
use crate::device::Device;
use crate::network::Error;
use crate::url::Url;

/// How many devices there may be: so many the host takes by default.
const MAX_DEVICES: usize = 4096;

/// Bytes of all devices together: half of what the host takes from a round.
const MAX_BYTES: usize = 8 << 20;

/// How many remarks are made; the host takes 64 lines a round.
const MAX_REMARKS: usize = 32;

/// How many servers have a note of their own; the host shows fewer.
const MAX_NOTES: usize = 512;

/// Bytes of what is said of one server.
const MAX_TEXT: usize = 512;

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
    /// How many remarks more there would be.
    pub unsaid: usize,
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
    /// Someone is there at the device's URL who says nothing without security: most likely the candidate.
    Secured(Device, Failures),
    /// The round did not find out.
    Unknown(Why),
    /// It is not there.
    Absent(Failures),
}

/// What went wrong at which URL.
pub type Failures = Vec<(Url, Error)>;

/// Why the round did not find out about a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// It was not asked.
    NotReached,
    /// It has no connection left.
    Busy,
    /// It is there, and one too many.
    NoRoom,
}

/// The checks of a round so far.
#[derive(Debug, Default)]
pub struct Findings {
    devices: BTreeMap<String, Device>,
    bytes: usize,
    /// By URL, with all discovery URLs that list them.
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

    fn said_of(self, count: usize) -> String {
        match self {
            Self::NotReached => format!("{count} of the servers listed there were {}", Error::NotReached),
            Self::Busy => format!("{count} of the servers listed there have no connection left to say who they are"),
            Self::NoRoom => format!("{count} of the servers listed there were {}", Error::NoRoom),
        }
    }
}

impl Findings {
    /// Of a round in which some discovery servers did not answer: nobody found out about their servers.
    pub fn without(failed: impl IntoIterator<Item = (usize, Error)>) -> Self {
        let mut findings = Self::default();
        for (origin, error) in failed {
            let (reason, message) = (error.reason(), error.to_string());
            findings.report.notes.push(Note { origin, reason, message });
            findings.report.kept.insert(origin);
        }
        findings
    }

    /// Adds what a check came to.
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
        self.tell_of_doubles(candidate);
    }

    /// Of two with one id the one that comes first counts, whichever was found first. One that is in stays in when another
    /// one does not fit.
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

    /// A server that is not there is nobody's fault. One that the handler may not ask, by whatever URL, is something to
    /// grant or to filter out.
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

    /// Two servers that name themselves the same are one device, which somebody should know.
    fn tell_of_doubles(&mut self, candidate: &Candidate) {
        let mut urls: Vec<&Url> = candidate.itself_at().collect();
        urls.dedup();
        if let [first, second, ..] = urls.as_slice() {
            let uri = &candidate.application.uri;
            let message =
                format!("who is at {first} and who is at {second} both say they are '{uri}': they are one device");
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

    /// What the round came to.
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
            message: why.said_of(*count),
        };
        report.notes.extend(self.left.iter().map(note));
        report.notes.sort_by_key(|note| note.origin);
        report.remarks.sort();
        report.devices = self.devices.into_values().collect();
        report
    }

    /// Where several are listed and whoever is there does not say who it is, nobody is added and nobody taken away.
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
