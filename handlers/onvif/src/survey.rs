//! A round: from the responses to the probe to devices.

use std::collections::BTreeSet;
use std::pin::pin;
use std::slice;
use std::time::Duration;

use akri_handler::FILTERED;
use futures::future::{Either, select};
use jiff::Timestamp;

use crate::announcement::{Answers, Camera};
use crate::concurrent_jobs;
use crate::credentials::{Credentials, Source, Store};
use crate::decision::{self, decision};
use crate::details::Details;
use crate::device::{Device, device};
use crate::filter::Decision;
use crate::inquiry::{self, CameraReport, Facts, PER_CAMERA, Wanted};
use crate::memory::{Known, Memory};
use crate::service_url::ServiceUrl;
use crate::session::Transport;

/// The result of a round.
#[derive(Debug, Default)]
pub struct Report {
    /// The selected cameras, in ascending order of UUID.
    pub devices: Vec<Device>,
    /// The UUIDs of cameras whose state is unknown in this round.
    pub kept: Vec<String>,
    /// The notes.
    pub notes: Vec<Note>,
    /// The cache for the next round.
    pub memory: Memory,
}

/// A note.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The UUID of a camera, or "".
    pub origin: String,
    /// A CamelCase word.
    pub reason: &'static str,
    /// A sentence.
    pub message: String,
}

/// A job of the round.
enum Task<'a> {
    /// Queries a camera.
    Ask { camera: &'a Camera, earlier: Facts, credentials: Option<Credentials> },
    /// Checks whether a camera that did not respond to the probe still exists: datagrams get lost.
    Probe { uuid: &'a str, url: ServiceUrl, was_open: bool },
}

/// The result of a job.
enum Outcome {
    CameraReport(Box<CameraReport>),
    IsThere,
    Unreachable(String),
}

impl Task<'_> {
    fn host(&self) -> &str {
        match self {
            Self::Ask { camera, .. } => camera.urls.first().map_or("", ServiceUrl::host),
            Self::Probe { url, .. } => url.host(),
        }
    }

    async fn perform<T: Transport>(&self, transport: &T, wanted: Wanted<'_>) -> Outcome {
        match self {
            Self::Ask { camera, earlier, credentials } => {
                match inquiry::ask(transport, camera, earlier, credentials.as_ref(), wanted).await {
                    Ok(camera_report) => Outcome::CameraReport(Box::new(camera_report)),
                    Err(why) => Outcome::Unreachable(why),
                }
            }
            Self::Probe { url, was_open, .. } => {
                let reached = inquiry::reach(transport, slice::from_ref(url), None);
                match select(pin!(reached), pin!(transport.sleep(PER_CAMERA))).await {
                    // Any web server may ask for credentials.
                    Either::Left((Ok((session, _)), _)) if session.is_open() || !was_open => Outcome::IsThere,
                    _ => Outcome::Unreachable(String::new()),
                }
            }
        }
    }
}

/// Queries the cameras that are not known yet, within `time`, and selects devices.
pub async fn survey<T: Transport, S: Source>(
    details: &Details,
    answers: &Answers,
    memory: &Memory,
    store: &Store<S>,
    transport: &T,
    time: Duration,
) -> Report {
    let mut survey = Survey { details, memory, now: transport.now(), report: Report::default() };
    let mut tasks: Vec<Task<'_>> = answers.cameras().filter_map(|camera| survey.consider(camera, store)).collect();
    tasks.extend(silent(answers, memory));
    if !tasks.is_empty() {
        // Start at a varying camera, so that a lack of time does not always affect the same ones.
        let first = usize::try_from(survey.now.as_second()).unwrap_or_default() % tasks.len();
        tasks.rotate_left(first);
    }
    let perform = async |task: &Task<'_>| task.perform(transport, survey.wanted()).await;
    let outcomes = concurrent_jobs::run(&tasks, Task::host, perform, transport.sleep(time)).await;
    survey.conclude(tasks, outcomes);
    survey.report
}

/// Returns the cameras of the last round that did not respond to the probe. A camera whose address and port another one
/// has taken since no longer exists; those of a recorder had one address before.
fn silent<'a>(answers: &'a Answers, memory: &'a Memory) -> impl Iterator<Item = Task<'a>> {
    let known_at = |known: &Known| ServiceUrl::parse(&known.facts.url);
    let taken = answers.cameras().flat_map(|camera| {
        let before = memory.get(&camera.uuid).and_then(known_at).map(|url| url.socket());
        camera.urls.iter().map(ServiceUrl::socket).filter(move |socket| before.as_ref() != Some(socket))
    });
    let taken: BTreeSet<(String, u16)> = taken.collect();
    memory.iter().filter(|(uuid, _)| !answers.contains(uuid)).filter_map(move |(uuid, known)| {
        let url = known_at(known).filter(|url| !taken.contains(&url.socket()))?;
        Some(Task::Probe { uuid, url, was_open: known.facts.is_open })
    })
}

struct Survey<'a> {
    details: &'a Details,
    memory: &'a Memory,
    now: Timestamp,
    report: Report,
}

impl<'a> Survey<'a> {
    fn wanted(&self) -> Wanted<'a> {
        Wanted { scopes: self.details.scopes.is_some(), stream: self.details.stream.as_ref() }
    }

    /// Determines the queries for a camera; none if it is rejected or known.
    fn consider<S: Source>(&mut self, camera: &'a Camera, store: &Store<S>) -> Option<Task<'a>> {
        if decision(self.details, camera, None) == Decision::Drop {
            self.leave_out(camera, None);
            return None;
        }
        let credentials = store.find(&camera.uuid).unwrap_or_else(|error| {
            self.note(camera, "CredentialsInvalid", error.to_string());
            None
        });
        let fingerprint = credentials.as_ref().map(Credentials::fingerprint);
        let is_current = |known: &&Known| known.is_current(camera, self.wanted(), fingerprint, self.now);
        let known = self.memory.get(&camera.uuid);
        let Some(current) = known.filter(is_current) else {
            return Some(Task::Ask { camera, earlier: self.earlier(known), credentials });
        };
        // A new filter may be on a fact that was not requested, or that requires credentials.
        let is_unknown = decision(self.details, camera, Some(&current.facts)) == Decision::Unknown;
        if is_unknown && !current.is_locked_out() {
            return Some(Task::Ask { camera, earlier: self.earlier(known), credentials });
        }
        let (facts, refused) = (current.facts.clone(), current.refused);
        self.decide(camera, credentials.as_ref(), CameraReport { facts, refused, ..CameraReport::default() });
        self.keep_in_cache(&camera.uuid);
        None
    }

    /// Returns the facts of a camera that a request which fails leaves as they are: no stream but the one that is wanted.
    fn earlier(&self, known: Option<&Known>) -> Facts {
        let Some(Known { facts, stream, .. }) = known else { return Facts::default() };
        let is_wanted = *stream == self.details.stream;
        Facts { stream: facts.stream.clone().filter(|_| is_wanted), ..facts.clone() }
    }

    fn conclude(&mut self, tasks: Vec<Task<'a>>, outcomes: Vec<Option<Outcome>>) {
        let mut not_queried = 0;
        for (task, outcome) in tasks.into_iter().zip(outcomes) {
            match (task, outcome) {
                (Task::Ask { camera, credentials, .. }, Some(Outcome::CameraReport(camera_report))) => {
                    self.add_report(camera, credentials.as_ref(), *camera_report);
                }
                (Task::Ask { camera, .. }, Some(Outcome::Unreachable(why))) => {
                    self.keep(&camera.uuid);
                    self.note(camera, "CameraUnreachable", why);
                }
                (Task::Ask { camera, .. }, _) => {
                    self.keep(&camera.uuid);
                    not_queried += 1;
                }
                (Task::Probe { .. }, Some(Outcome::Unreachable(_))) => {}
                (Task::Probe { uuid, .. }, _) => self.keep(uuid),
            }
        }
        if not_queried > 0 {
            let message =
                format!("{not_queried} cameras could not be asked in the time a round has; they stay as they are");
            self.report.notes.push(Note { origin: String::new(), reason: "RoundTooShort", message });
        }
        // The order of the queries must not show in the result.
        self.report.devices.sort_by(|a, b| a.id.cmp(&b.id));
        self.report.notes.sort_by(|a, b| a.origin.cmp(&b.origin));
    }

    fn add_report(&mut self, camera: &Camera, credentials: Option<&Credentials>, camera_report: CameraReport) {
        let known = Known {
            was_announced: camera.urls.iter().any(|url| url.to_string() == camera_report.facts.url),
            facts: camera_report.facts.clone(),
            refused: camera_report.refused,
            asked_at: self.now.as_second(),
            metadata_version: camera.metadata_version.clone(),
            credentials: credentials.map(Credentials::fingerprint),
            stream: self.details.stream.clone(),
        };
        let has_no_stream = camera_report.no_stream.is_some() || camera_report.refused && self.details.stream.is_some();
        if known.is_locked_out() || !has_no_stream && !camera_report.is_partial {
            self.report.memory.insert(camera.uuid.clone(), known);
        } else {
            self.keep_in_cache(&camera.uuid);
        }
        self.decide(camera, credentials, camera_report);
    }

    /// Decides on a camera whose facts are known, and reports it.
    fn decide(&mut self, camera: &Camera, credentials: Option<&Credentials>, camera_report: CameraReport) {
        let CameraReport { facts, refused, is_partial, no_stream } = camera_report;
        match decision(self.details, camera, Some(&facts)) {
            Decision::Drop => return self.leave_out(camera, Some(&facts)),
            Decision::Unknown => return self.hold_back(camera, credentials.is_some(), refused, &facts),
            Decision::Keep => {}
        }
        let wants_stream = self.details.stream.is_some();
        let problem = match (no_stream, credentials) {
            (_, Some(Credentials { holder, .. })) if refused => {
                let why = format!(
                    "it refuses its credentials, those of {holder}; the next try is in 5 minutes, or when they change"
                );
                Some(("CredentialsRefused", why))
            }
            _ if is_partial => Some(("CameraSlow", format!("it does not answer everything within {PER_CAMERA:?}"))),
            _ if refused && wants_stream => Some(("NoStream", "it asks for credentials".to_owned())),
            (no_stream, _) => no_stream.map(|why| ("NoStream", why)),
        };
        if let Some((reason, why)) = problem {
            let held = self.details.stream_required && facts.stream.is_none();
            let why = if held { format!("{why}; it is held back without its stream") } else { why };
            self.note(camera, reason, format!("{}: {why}", facts.url));
            if held {
                return self.report.kept.push(camera.uuid.clone());
            }
        }
        self.report.devices.push(device(camera, &facts, self.details));
    }

    fn hold_back(&mut self, camera: &Camera, with_credentials: bool, refused: bool, facts: &Facts) {
        let why = match (refused, with_credentials) {
            (false, _) => "the camera does not tell",
            (true, true) => "the camera refuses its credentials",
            (true, false) => {
                "the camera asks for credentials, and there are none for it, or none that grants.secrets covers"
            }
        };
        let what = decision::unknown(self.details, camera, facts);
        let message = format!("{}: it is held back, as there is a filter on its {what}: {why}", facts.url);
        self.report.kept.push(camera.uuid.clone());
        self.note(camera, "HeldBack", message);
    }

    /// Reports a camera that a filter rejects.
    fn leave_out(&mut self, camera: &Camera, facts: Option<&Facts>) {
        let url = camera.urls.first().map_or_else(String::new, |url| format!(" at {url}"));
        let message = format!("the filter on its {}", decision::rejecting(self.details, camera, facts));
        self.report.notes.push(Note { origin: format!("{}{url}", camera.uuid), reason: FILTERED, message });
    }

    /// Keeps the known state of a camera that could not be queried.
    fn keep(&mut self, uuid: &str) {
        self.report.kept.push(uuid.to_owned());
        self.keep_in_cache(uuid);
    }

    /// Keeps the cache entry of a camera, with its age.
    fn keep_in_cache(&mut self, uuid: &str) {
        if let Some(known) = self.memory.get(uuid) {
            self.report.memory.insert(uuid.to_owned(), known.clone());
        }
    }

    fn note(&mut self, camera: &Camera, reason: &'static str, message: String) {
        self.report.notes.push(Note { origin: camera.uuid.clone(), reason, message });
    }
}

#[cfg(test)]
#[path = "survey_tests.rs"]
mod tests;
