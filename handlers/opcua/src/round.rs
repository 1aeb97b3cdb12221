//! A round: all discovery servers are asked which servers they know, then all of these whether they are there, many at
//! once and each within a bound, until a second before the round's time is up.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream;

use crate::candidate::{Candidate, List, candidates};
use crate::details::{Details, DiscoveryUrl};
use crate::device::{Device, device};
use crate::message::{self, Application, Endpoint, Question};
use crate::network::{Error, Network};
use crate::url::Url;

/// How many servers are asked at once.
const IN_FLIGHT: usize = 32;

/// The time of a discovery server, at most a third of the round's; all of them together have half of it. Some need more
/// than a second for 1,000 entries.
const FIND: Duration = Duration::from_secs(10);

/// The time of a server to show that it is there, which the URLs it may be at share.
const CHECK: Duration = Duration::from_secs(3);

/// What is left of the round's time at its end, to tell what was found.
const RESERVE: Duration = Duration::from_secs(1);

/// How many failed discovery URLs an error names.
const NAMED: usize = 8;

/// What a round came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The servers that are there, in ascending order of id.
    pub devices: Vec<Device>,
    /// What is wrong and someone can do something about.
    pub notes: Vec<Note>,
    /// Discovery URLs, by their place in the details, whose servers the round did not find out about.
    pub kept: BTreeSet<usize>,
    /// Servers that are listed and not there, each with why: for the log, since lists are seldom up to date.
    pub absent: Vec<String>,
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

/// No discovery server answered, so that nothing is known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The handler may not ask any of them.
    #[error("{0}")]
    NotGranted(String),
    /// Why, for the first of them.
    #[error("{0}")]
    Unavailable(String),
}

/// Runs a round. `start` is any number: where among the servers the checks begin, so that over the rounds each gets its
/// turn even where the time is never enough for all.
///
/// # Errors
/// There are discovery URLs, and none of them answered.
pub async fn run(network: &impl Network, details: &Details, start: usize) -> Result<Report, Failure> {
    let (lists, failed) = find(network, &details.discovery_urls).await;
    if lists.is_empty() && !failed.is_empty() {
        return Err(failure(&failed));
    }
    let mut report = Report { kept: failed.iter().map(|(origin, ..)| *origin).collect(), ..Report::default() };
    report.notes.extend(failed.into_iter().map(|(origin, _, error)| Note::of(origin, &error)));
    let mut candidates = candidates(lists, &details.application_names);
    let places = candidates.len().max(1);
    candidates.rotate_left(start % places);
    let checks = stream::iter(&candidates).map(async |candidate| (candidate, check(network, candidate).await));
    let checked: Vec<_> = checks.buffer_unordered(IN_FLIGHT).collect().await;
    report.add(checked);
    Ok(report)
}

type Failed<'d> = (usize, &'d Url, Error);

/// The lists of the discovery servers that answer, and why the others don't; both in ascending order of origin.
async fn find<'d>(network: &impl Network, urls: &'d [DiscoveryUrl]) -> (Vec<List>, Vec<Failed<'d>>) {
    let round = network.remaining();
    let bound = Bound { most: FIND.min(round / 3), reserve: RESERVE.max(round / 2) };
    let asked = stream::iter(urls.iter().enumerate()).map(async |(origin, DiscoveryUrl { url, .. })| {
        let answer = find_servers(network, url, bound).await;
        (origin, url, answer)
    });
    let mut answers: Vec<_> = asked.buffer_unordered(IN_FLIGHT).collect().await;
    answers.sort_by_key(|(origin, ..)| *origin);
    let (mut lists, mut failed) = (Vec::new(), Vec::new());
    for (origin, url, answer) in answers {
        match answer {
            Ok(applications) => lists.push(List { origin, url: url.clone(), applications }),
            Err(error) => failed.push((origin, url, error)),
        }
    }
    (lists, failed)
}

fn failure(failed: &[Failed<'_>]) -> Failure {
    let shown = failed.iter().take(NAMED).map(|(_, url, error)| format!("{url}: {error}"));
    let more = failed.len().checked_sub(NAMED).filter(|more| *more > 0).map(|more| format!("and {more} more"));
    let message = shown.chain(more).collect::<Vec<_>>().join("; ");
    let granted = failed.iter().any(|(_, _, error)| !matches!(error, Error::NotGranted(_)));
    if granted { Failure::Unavailable(message) } else { Failure::NotGranted(message) }
}

/// What the check of a candidate came to.
#[derive(Debug)]
enum Check {
    There(Device),
    NotReached,
    Absent(Vec<(Url, Error)>),
}

/// Looks for a candidate at one URL after the other. Each may take an equal part of the time that is left.
async fn check(network: &impl Network, candidate: &Candidate) -> Check {
    let start = network.remaining();
    let urls = candidate.urls();
    let mut failures = Vec::new();
    for (left, &url) in (1..=urls.len() as u32).rev().zip(&urls) {
        let spent = start.saturating_sub(network.remaining());
        let bound = Bound { most: CHECK.saturating_sub(spent) / left, reserve: RESERVE };
        match look(network, candidate, url, bound).await {
            Ok(device) => return Check::There(device),
            Err(Error::NotReached) => return Check::NotReached,
            Err(error) => failures.push((url.clone(), error)),
        }
    }
    Check::Absent(failures)
}

/// The candidate's device, if it is what answers at a URL.
async fn look(network: &impl Network, candidate: &Candidate, url: &Url, bound: Bound) -> Result<Device, Error> {
    let endpoints = get_endpoints(network, url, bound).await?;
    let first = endpoints.first().ok_or_else(|| Error::InvalidReply("it offers no endpoint".to_owned()))?;
    let other = || Error::OtherApplication(first.server.uri.clone());
    device(candidate, url, &candidate.own(&endpoints)).ok_or_else(other)
}

/// How long a question may take: at most this, and only as long as there is more than the reserve of the round's time.
#[derive(Debug, Clone, Copy)]
struct Bound {
    most: Duration,
    reserve: Duration,
}

async fn find_servers(network: &impl Network, url: &Url, bound: Bound) -> Result<Vec<Application>, Error> {
    Ok(message::read_applications(&ask(network, url, Question::FindServers, bound).await?)?)
}

async fn get_endpoints(network: &impl Network, url: &Url, bound: Bound) -> Result<Vec<Endpoint>, Error> {
    Ok(message::read_endpoints(&ask(network, url, Question::GetEndpoints, bound).await?)?)
}

/// That a server did not answer says something about it only if it had its whole time.
async fn ask(network: &impl Network, url: &Url, question: Question, bound: Bound) -> Result<Vec<u8>, Error> {
    let left = network.remaining().saturating_sub(bound.reserve);
    if left.is_zero() {
        return Err(Error::NotReached);
    }
    match network.ask(url, question, bound.most.min(left)).await {
        Err(Error::TimedOut(_)) if left < bound.most => Err(Error::NotReached),
        answer => answer,
    }
}

impl Note {
    fn of(origin: usize, error: &Error) -> Self {
        Self { origin, reason: error.reason(), message: error.to_string() }
    }
}

impl Report {
    /// Adds what the checks came to.
    fn add(&mut self, mut checked: Vec<(&Candidate, Check)>) {
        checked.sort_by(|(a, _), (b, _)| a.application.uri.cmp(&b.application.uri));
        let mut devices = BTreeMap::new();
        let mut not_reached: BTreeMap<usize, usize> = BTreeMap::new();
        for (candidate, check) in checked {
            match check {
                Check::There(device) => {
                    devices.entry(device.id.clone()).or_insert(device);
                }
                Check::NotReached => {
                    candidate.origins.iter().for_each(|origin| *not_reached.entry(*origin).or_default() += 1);
                }
                Check::Absent(failures) => self.add_absent(candidate, &failures),
            }
        }
        self.devices = devices.into_values().collect();
        self.kept.extend(not_reached.keys());
        self.notes.extend(not_reached.into_iter().map(|(origin, count)| {
            let message = format!("{count} of the servers listed there were {}", Error::NotReached);
            Note { origin, reason: Error::NotReached.reason(), message }
        }));
    }

    /// A server that is not there is nobody's fault. One that the handler may not ask is something to grant or to filter
    /// out.
    fn add_absent(&mut self, candidate: &Candidate, failures: &[(Url, Error)]) {
        let why: Vec<String> = failures.iter().map(|(url, error)| format!("{url}: {error}")).collect();
        let message = format!("'{}' is listed, but was not found: {}", candidate.application.uri, why.join("; "));
        let refused = failures.iter().any(|(_, error)| matches!(error, Error::NotGranted(_)));
        match candidate.origins.first() {
            Some(&origin) if refused => self.notes.push(Note { origin, reason: "NotGranted", message }),
            _ => self.absent.push(message),
        }
    }
}

#[cfg(test)]
#[path = "round_tests.rs"]
mod tests;
