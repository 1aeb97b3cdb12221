//! A round: all discovery servers are queried, then every listed server, concurrently and each within a time limit,
//! until a second before the end of the round.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use akri_handler::Failure;
use futures::StreamExt as _;
use futures::stream;

use crate::candidate::{Candidate, List, candidates, left_out};
use crate::details::{Details, DiscoveryUrl};
use crate::device::{Device, device};
use crate::message::{self, Application, ApplicationType, Endpoint, Question};
use crate::network::{Error, Network, shown};
use crate::report::{Check, Failures, Findings, Report, Why};
use crate::url::Url;

/// Maximum number of discovery servers queried concurrently: the memory of a round holds that many of the largest
/// lists.
const LISTS_IN_FLIGHT: usize = 16;

/// Maximum number of servers queried concurrently.
const CHECKS_IN_FLIGHT: usize = 32;

/// Limit on all lists together, in bytes: 10,000 servers, or three lists of the largest size.
const LISTED: usize = 4 << 20;

/// Time limit of a discovery server, at most a third of the round; all together have half of it. Some take more than a
/// second for 1,000 entries.
const FIND: Duration = Duration::from_secs(10);

/// Time limit of a server, shared by its URLs. It is lower if there are so many servers that unresponsive ones could
/// use up the round.
const CHECK: Duration = Duration::from_secs(3);

/// Minimum of that limit: TCP retransmits after a second.
const LEAST_CHECK: Duration = Duration::from_millis(1200);

/// Time reserved at the end of the round for reporting.
const RESERVE: Duration = Duration::from_secs(1);

/// Maximum number of failed discovery URLs in an error.
const NAMED: usize = 8;

/// Runs a round. `start` is an arbitrary number that selects the first server to check, so that over several rounds
/// each is checked even if the time never suffices for all.
///
/// # Errors
/// If there are discovery URLs, none responds, and that says nothing about servers that list themselves.
pub async fn run(network: &impl Network, details: &Details, start: usize) -> Result<Report, Failure> {
    let (lists, failed) = find(network, &details.discovery_urls).await;
    let is_silent = failed.iter().any(|(_, _, error)| error.is_silence());
    if lists.is_empty() && !failed.is_empty() && !is_silent {
        return Err(failure(&failed));
    }
    let mut findings = Findings::without(failed.into_iter().map(|(origin, _, error)| (origin, error)));
    let left_out = left_out(&lists, details.application_names.as_ref());
    let candidates = interleaved(candidates(lists, details.application_names.as_ref(), details.identify_by), start);
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
    Ok(Report { left_out, ..findings.report() })
}

/// Interleaves the lists, so that a long one does not starve others; each starts at another place.
fn interleaved(candidates: Vec<Candidate>, start: usize) -> Vec<Candidate> {
    let mut lists: BTreeMap<Option<usize>, Vec<Candidate>> = BTreeMap::new();
    for candidate in candidates {
        lists.entry(candidate.origins.first().copied()).or_default().push(candidate);
    }
    let mut interleaved = Vec::new();
    for mut list in lists.into_values() {
        let places = list.len().max(1);
        list.rotate_left(start % places);
        interleaved.extend(list.into_iter().enumerate());
    }
    interleaved.sort_by_key(|(place, _)| *place); // stable: of one place, the lists in their order
    interleaved.into_iter().map(|(_, candidate)| candidate).collect()
}

type Failed<'d> = (usize, &'d Url, Error);

/// Returns the lists of the discovery servers, and the errors of failed ones, both in ascending order of origin.
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

/// Returns the list if it fits into the remaining memory, and reserves it.
fn fitting(applications: Vec<Application>, room: &mut usize) -> Result<Vec<Application>, Error> {
    let size = applications.iter().map(Application::size).sum();
    *room = room.checked_sub(size).ok_or(Error::NoRoom)?;
    Ok(applications)
}

/// Returns the time for each of `count` jobs, so that all are completed in time at that concurrency even if none
/// responds.
fn share(time: Duration, count: usize, at_once: usize) -> Duration {
    let batches = u32::try_from(count.div_ceil(at_once)).unwrap_or(u32::MAX);
    time / batches.max(1)
}

fn failure(failed: &[Failed<'_>]) -> Failure {
    let shown = failed.iter().take(NAMED).map(|(_, url, error)| format!("{url}: {error}"));
    let more = failed.len().checked_sub(NAMED).filter(|more| *more > 0).map(|more| format!("and {more} more"));
    let message = shown.chain(more).collect::<Vec<_>>().join("; ");
    let granted = failed.iter().any(|(_, _, error)| !matches!(error, Error::NotGranted(_)));
    if granted { Failure::Unavailable(message) } else { Failure::NotGranted(message) }
}

/// Checks a candidate at one URL after the other, each with an equal share of the remaining time.
async fn check(network: &impl Network, candidate: &Candidate, most: Duration) -> Check {
    let start = network.remaining();
    let urls = candidate.urls();
    let mut failures = Failures::new();
    for (left, &url) in (1..=urls.len() as u32).rev().zip(&urls) {
        let spent = start.saturating_sub(network.remaining());
        let bound = Bound { most: most.saturating_sub(spent) / left, reserve: RESERVE };
        match find_device(network, candidate, url, bound).await {
            Ok(device) => return Check::There(with_its_list(network, candidate, device, bound).await),
            Err(error) => failures.push((url.clone(), error)),
        }
    }
    if failures.iter().any(|(_, error)| *error == Error::NotReached) {
        return Check::Unknown(Why::NotReached);
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

/// Finds out whether a device is its own list. A server that answers elsewhere than at its discovery URL is, if it answers
/// there, too: otherwise a discovery server lists it alone.
async fn with_its_list(network: &impl Network, candidate: &Candidate, mut device: Device, bound: Bound) -> Device {
    if let Some(url) = candidate.sole_entry_at().filter(|_| !device.lists_itself) {
        device.lists_itself = get_endpoints(network, url, bound).await.is_ok_and(|endpoints| {
            let uri = &candidate.application.uri;
            let is_own = |endpoint: &Endpoint| uri.is_empty() || endpoint.server.uri == *uri;
            let is_server = |endpoint: &Endpoint| endpoint.server.kind != ApplicationType::DiscoveryServer;
            endpoints.iter().any(|endpoint| is_own(endpoint) && is_server(endpoint))
        });
    }
    device
}

/// Returns the candidate's device if it responds at a URL.
async fn find_device(network: &impl Network, candidate: &Candidate, url: &Url, bound: Bound) -> Result<Device, Error> {
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

/// A time limit of requests: a maximum, reduced by the reserve at the end of the round.
#[derive(Debug, Clone, Copy)]
struct Bound {
    most: Duration,
    reserve: Duration,
}

/// Queries a discovery server for its servers.
///
/// Some versions of open62541 replace every server's host by that of the request; without a URL in the request they
/// return the registered URLs.
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

/// Returns whether several applications are listed at the requested URL and nowhere else.
fn are_mirrored(applications: &[Application], asked: &Url) -> bool {
    let asked = asked.to_string();
    applications.iter().filter(|application| application.discovery_urls == [asked.as_str()]).count() > 1
}

async fn get_endpoints(network: &impl Network, url: &Url, bound: Bound) -> Result<Vec<Endpoint>, Error> {
    Ok(message::read_endpoints(&ask(network, url, Question::GetEndpoints, bound).await?)?)
}

/// Sends a request. A timeout counts against the server only if it had its full time.
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
