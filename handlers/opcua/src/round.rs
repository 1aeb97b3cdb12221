//! A round: all discovery servers are asked which servers they know, then all of these whether they are there, many at
//! once and each within a bound, until a second before the round's time is up.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream;

use crate::candidate::{Candidate, List, candidates};
use crate::details::{Details, DiscoveryUrl};
use crate::device::{Device, device};
use crate::message::{self, Application, ApplicationType, Endpoint, Question};
use crate::network::{Error, Network, shown};
use crate::report::{Check, Failures, Findings, Report, Why};
use crate::url::Url;

/// How many discovery servers are asked at once: so many of the largest lists the memory of a round has room for.
const LISTS_IN_FLIGHT: usize = 16;

/// How many servers are asked at once.
const CHECKS_IN_FLIGHT: usize = 32;

/// Bytes of all lists together: 10,000 servers, or three lists of the largest size.
const LISTED: usize = 4 << 20;

/// The time of a discovery server, at most a third of the round's; all of them together have half of it. Some need more
/// than a second for 1,000 entries.
const FIND: Duration = Duration::from_secs(10);

/// The time of a server to show that it is there, which the URLs it may be at share. If there are so many that silent
/// ones could take the others' turns, it is less.
const CHECK: Duration = Duration::from_secs(3);

/// The least of it: TCP asks once more after a second.
const LEAST_CHECK: Duration = Duration::from_millis(1200);

/// What is left of the round's time at its end, to tell what was found.
const RESERVE: Duration = Duration::from_secs(1);

/// How many failed discovery URLs an error names.
const NAMED: usize = 8;

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
    let mut findings = Findings::without(failed.into_iter().map(|(origin, _, error)| (origin, error)));
    let candidates = in_turns(candidates(lists, details.application_names.as_ref()), start);
    let waiting = Cell::new(candidates.len());
    let checks = stream::iter(&candidates).map(async |candidate| {
        let time = network.remaining().saturating_sub(RESERVE);
        let most = share(time, waiting.get(), CHECKS_IN_FLIGHT).clamp(LEAST_CHECK, CHECK);
        waiting.update(|count| count.saturating_sub(1));
        (candidate, check(network, candidate, most).await)
    });
    let mut checks = pin!(checks.buffer_unordered(CHECKS_IN_FLIGHT));
    while let Some((candidate, check)) = checks.next().await {
        findings.add(candidate, check);
    }
    Ok(findings.report())
}

/// One of each list after the other, so that a long list takes nobody's turn; in each list from another place on.
fn in_turns(candidates: Vec<Candidate>, start: usize) -> Vec<Candidate> {
    let mut lists: BTreeMap<Option<usize>, Vec<Candidate>> = BTreeMap::new();
    for candidate in candidates {
        lists.entry(candidate.origins.first().copied()).or_default().push(candidate);
    }
    let mut turns = Vec::new();
    for mut list in lists.into_values() {
        let places = list.len().max(1);
        list.rotate_left(start % places);
        turns.extend(list.into_iter().enumerate());
    }
    turns.sort_by_key(|(turn, _)| *turn); // stable: of one turn, the lists in their order
    turns.into_iter().map(|(_, candidate)| candidate).collect()
}

type Failed<'d> = (usize, &'d Url, Error);

/// The lists of the discovery servers that answer, and why the others don't; both in ascending order of origin.
async fn find<'d>(network: &impl Network, urls: &'d [DiscoveryUrl]) -> (Vec<List>, Vec<Failed<'d>>) {
    let round = network.remaining();
    let most = FIND.min(round / 3).min(share(round / 2, urls.len(), LISTS_IN_FLIGHT));
    let bound = Bound { most, reserve: RESERVE.max(round / 2) };
    let asked = stream::iter(urls.iter().enumerate()).map(async |(origin, DiscoveryUrl { url, .. })| {
        let answer = find_servers(network, url, bound).await;
        (origin, url, answer)
    });
    let mut answers = pin!(asked.buffer_unordered(LISTS_IN_FLIGHT));
    let (mut lists, mut failed, mut room) = (Vec::new(), Vec::new(), LISTED);
    while let Some((origin, url, answer)) = answers.next().await {
        match answer.and_then(|applications| fitting(applications, &mut room)) {
            Ok(applications) => lists.push(List { origin, url: url.clone(), applications }),
            Err(error) => failed.push((origin, url, error)),
        }
    }
    lists.sort_by_key(|list| list.origin);
    failed.sort_by_key(|(origin, ..)| *origin);
    (lists, failed)
}

/// A list, if there is room for it, which it takes then.
fn fitting(applications: Vec<Application>, room: &mut usize) -> Result<Vec<Application>, Error> {
    let size = applications.iter().map(Application::size).sum();
    *room = room.checked_sub(size).ok_or(Error::NoRoom)?;
    Ok(applications)
}

/// How long each of `count` may take, so that all get their turns in a time, so many at once, even if none of them answers.
fn share(time: Duration, count: usize, at_once: usize) -> Duration {
    let turns = u32::try_from(count.div_ceil(at_once)).unwrap_or(u32::MAX);
    time / turns.max(1)
}

fn failure(failed: &[Failed<'_>]) -> Failure {
    let shown = failed.iter().take(NAMED).map(|(_, url, error)| format!("{url}: {error}"));
    let more = failed.len().checked_sub(NAMED).filter(|more| *more > 0).map(|more| format!("and {more} more"));
    let message = shown.chain(more).collect::<Vec<_>>().join("; ");
    let granted = failed.iter().any(|(_, _, error)| !matches!(error, Error::NotGranted(_)));
    if granted { Failure::Unavailable(message) } else { Failure::NotGranted(message) }
}

/// Looks for a candidate at one URL after the other. Each may take an equal part of the time that is left.
async fn check(network: &impl Network, candidate: &Candidate, most: Duration) -> Check {
    let start = network.remaining();
    let urls = candidate.urls();
    let mut failures = Failures::new();
    for (left, &url) in (1..=urls.len() as u32).rev().zip(&urls) {
        let spent = start.saturating_sub(network.remaining());
        let bound = Bound { most: most.saturating_sub(spent) / left, reserve: RESERVE };
        match look(network, candidate, url, bound).await {
            Ok(device) => return Check::There(device),
            Err(Error::NotReached) => return Check::Unknown(Why::NotReached),
            Err(error) => failures.push((url.clone(), error)),
        }
    }
    if failures.iter().any(|(_, error)| error.is_busy()) {
        return Check::Unknown(Why::Busy);
    }
    let secured = failures.iter().find(|(_, error)| error.demands_security());
    match secured.map(|(url, _)| device(candidate, url, &[])) {
        Some(device) => Check::Secured(device, failures),
        None => Check::Absent(failures),
    }
}

/// The candidate's device, if it is what answers at a URL.
async fn look(network: &impl Network, candidate: &Candidate, url: &Url, bound: Bound) -> Result<Device, Error> {
    let endpoints = get_endpoints(network, url, bound).await?;
    let first = endpoints.first().ok_or_else(|| Error::InvalidReply("it offers no endpoint".to_owned()))?;
    let own = candidate.own(&endpoints, url);
    if own.is_empty() {
        return Err(Error::OtherApplication(shown(&first.server.uri)));
    }
    if own.iter().any(|endpoint| endpoint.server.kind == ApplicationType::DiscoveryServer) {
        return Err(Error::InvalidReply("it is a discovery server".to_owned())); // some list themselves as servers
    }
    Ok(device(candidate, url, &own))
}

/// How long a question may take: at most this, and only as long as there is more than the reserve of the round's time.
#[derive(Debug, Clone, Copy)]
struct Bound {
    most: Duration,
    reserve: Duration,
}

/// The servers that a discovery server knows.
///
/// Some versions of open62541 say of every server that it is at the URL they were asked with; asked without one, they
/// give the URLs that were registered.
async fn find_servers(network: &impl Network, url: &Url, bound: Bound) -> Result<Vec<Application>, Error> {
    let start = network.remaining();
    let applications = message::read_applications(&ask(network, url, Question::FindServers, bound).await?)?;
    if !are_mirrored(&applications, url) {
        return Ok(applications);
    }
    let spent = start.saturating_sub(network.remaining());
    let bound = Bound { most: bound.most.saturating_sub(spent), ..bound };
    let registered = ask(network, url, Question::FindServersAnywhere, bound).await?;
    Ok(message::read_applications(&registered)?)
}

/// Whether several applications are said to be at the URL, and nowhere else, by which the discovery server was asked.
fn are_mirrored(applications: &[Application], asked: &Url) -> bool {
    let asked = asked.to_string();
    applications.iter().filter(|application| application.discovery_urls == [asked.as_str()]).count() > 1
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

#[cfg(test)]
#[path = "round_tests.rs"]
mod tests;
