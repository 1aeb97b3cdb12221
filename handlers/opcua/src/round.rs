//! A round: all discovery servers are asked which servers they know, then all of these whether they are there, many at
//! once and each within a bound, until a second before the round's time is up.

use std::cell::Cell;
use std::pin::pin;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream;

use crate::candidate::{Candidate, List, candidates};
use crate::details::{Details, DiscoveryUrl};
use crate::device::{Device, device};
use crate::message::{self, Application, Endpoint, Question};
use crate::network::{Error, Network};
use crate::report::{Check, Failures, Note, Report};
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
    let mut report = Report { kept: failed.iter().map(|(origin, ..)| *origin).collect(), ..Report::default() };
    report.notes.extend(failed.into_iter().map(|(origin, _, error)| Note::of(origin, &error)));
    let mut candidates = candidates(lists, &details.application_names);
    let places = candidates.len().max(1);
    candidates.rotate_left(start % places);
    report.add(check_all(network, &candidates).await);
    Ok(report)
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

/// Looks for all candidates.
async fn check_all<'c>(network: &impl Network, candidates: &'c [Candidate]) -> Vec<(&'c Candidate, Check)> {
    let waiting = Cell::new(candidates.len());
    let checks = stream::iter(candidates).map(async |candidate| {
        let time = network.remaining().saturating_sub(RESERVE);
        let most = share(time, waiting.get(), CHECKS_IN_FLIGHT).clamp(LEAST_CHECK, CHECK);
        waiting.update(|count| count.saturating_sub(1));
        (candidate, check(network, candidate, most).await)
    });
    checks.buffer_unordered(CHECKS_IN_FLIGHT).collect().await
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
            Err(Error::NotReached) => return Check::NotReached,
            Err(error) => failures.push((url.clone(), error)),
        }
    }
    let unwilling = failures.iter().find(|(_, error)| error.is_unwilling()).map(|(url, _)| device(candidate, url, &[]));
    match unwilling {
        Some(device) => Check::Unwilling(device, failures),
        None => Check::Absent(failures),
    }
}

/// The candidate's device, if it is what answers at a URL.
async fn look(network: &impl Network, candidate: &Candidate, url: &Url, bound: Bound) -> Result<Device, Error> {
    let endpoints = get_endpoints(network, url, bound).await?;
    let first = endpoints.first().ok_or_else(|| Error::InvalidReply("it offers no endpoint".to_owned()))?;
    let own = candidate.own(&endpoints);
    if own.is_empty() {
        return Err(Error::OtherApplication(first.server.uri.clone()));
    }
    Ok(device(candidate, url, &own))
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

#[cfg(test)]
#[path = "round_tests.rs"]
mod tests;
