//! A simulated network and clock for unit tests of rounds.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use akri_handler::Failure;

use crate::details::{Details, IdentifyBy};
use crate::fixture::{ApplicationType, application, one_endpoint, servers};
use crate::message::Question;
use crate::network::{Error, Network};
use crate::report::Report;
use crate::round::run;
use crate::url::Url;

/// The default latency of a server.
pub(crate) const LATENCY: Duration = Duration::from_millis(10);

/// Servers by URL, and a clock that advances only when all tasks wait.
pub(crate) struct World {
    pub(crate) servers: HashMap<String, Behaviour>,
    pub(crate) round: Duration,
    pub(crate) now: Cell<Duration>,
    waiting: RefCell<Vec<(Duration, Waker)>>,
    pub(crate) asked: RefCell<Vec<String>>,
    flying: Cell<usize>,
    pub(crate) most_flying: Cell<usize>,
}

/// The behaviour of a server. Others refuse connections.
#[derive(Clone)]
pub(crate) enum Behaviour {
    /// FindServers, GetEndpoints.
    Answers(Vec<u8>, Vec<u8>),
    Fails(Error),
    IsSilent,
}

pub(crate) use Behaviour::{Answers, Fails, IsSilent};

impl World {
    pub(crate) fn new(servers: impl IntoIterator<Item = (&'static str, Behaviour)>) -> Self {
        Self {
            servers: servers.into_iter().map(|(url, behaviour)| (url.to_owned(), behaviour)).collect(),
            round: Duration::from_secs(60),
            now: Cell::default(),
            waiting: RefCell::default(),
            asked: RefCell::default(),
            flying: Cell::default(),
            most_flying: Cell::default(),
        }
    }

    pub(crate) fn run(&self, discovery_urls: &[&str]) -> Result<Report, Failure> {
        self.run_from(0, discovery_urls)
    }

    pub(crate) fn run_from(&self, start: usize, discovery_urls: &[&str]) -> Result<Report, Failure> {
        self.run_by(IdentifyBy::ApplicationUri, start, discovery_urls)
    }

    pub(crate) fn run_by(&self, by: IdentifyBy, start: usize, discovery_urls: &[&str]) -> Result<Report, Failure> {
        let json = serde_json::json!({"opcuaDiscoveryMethod": {"standard": {"discoveryUrls": discovery_urls}}});
        let details = Details { identify_by: by, ..Details::parse(Some(&json.to_string())).unwrap() };
        let mut round = pin!(run(self, &details, start));
        loop {
            match round.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(report) => return report,
                Poll::Pending => self.pass_time(),
            }
        }
    }

    /// Advances the clock to the next wake-up.
    fn pass_time(&self) {
        let waiting = self.waiting.take();
        self.now.set(waiting.iter().map(|(until, _)| *until).min().expect("somebody waits"));
        let (over, waiting) = waiting.into_iter().partition(|(until, _)| *until <= self.now.get());
        self.waiting.replace(waiting);
        let over: Vec<(Duration, Waker)> = over;
        over.into_iter().for_each(|(_, waker)| waker.wake());
    }

    async fn wait(&self, duration: Duration) {
        let until = self.now.get() + duration;
        poll_fn(|context| {
            if self.now.get() >= until {
                return Poll::Ready(());
            }
            self.waiting.borrow_mut().push((until, context.waker().clone()));
            Poll::Pending
        })
        .await;
    }
}

impl Network for World {
    async fn ask(&self, url: &Url, question: Question, limit: Duration) -> Result<Vec<u8>, Error> {
        self.asked.borrow_mut().push(url.to_string());
        self.flying.set(self.flying.get() + 1);
        self.most_flying.set(self.most_flying.get().max(self.flying.get()));
        let behaviour = self.servers.get(&url.to_string()).cloned();
        let silent = matches!(behaviour, Some(IsSilent));
        self.wait(if silent { limit } else { LATENCY.min(limit) }).await;
        self.flying.set(self.flying.get() - 1);
        match behaviour {
            Some(Answers(servers, _)) if question == Question::FindServers => Ok(servers),
            Some(Answers(_, endpoints)) => Ok(endpoints),
            Some(Fails(error)) => Err(error),
            Some(IsSilent) => Err(Error::TimedOut(limit)),
            None => Err(Error::Unreachable("connection refused".into())),
        }
    }

    fn remaining(&self) -> Duration {
        self.round.saturating_sub(self.now.get())
    }
}

/// Returns a discovery server that lists itself and servers, given as URI and URL.
pub(crate) fn lists(entries: &[(&str, &str)]) -> Behaviour {
    let entry = |(uri, url): &(&str, &str)| application(ApplicationType::Server, uri, uri, &[url]);
    lists_all(entries.iter().map(entry).collect())
}

pub(crate) fn lists_all(mut entries: Vec<opcua_types::ApplicationDescription>) -> Behaviour {
    entries.push(application(ApplicationType::DiscoveryServer, "urn:lds", "LDS", &[]));
    Answers(servers(entries), one_endpoint("urn:lds"))
}

/// Returns a server with this URI.
pub(crate) fn is(uri: &str) -> Behaviour {
    responds(one_endpoint(uri))
}

/// Returns a server that sends this response to every request.
pub(crate) fn responds(response: Vec<u8>) -> Behaviour {
    Answers(response.clone(), response)
}

pub(crate) const LDS: &str = "opc.tcp://192.0.2.7:4840/";
pub(crate) const OTHER_LDS: &str = "opc.tcp://192.0.2.8:4840/";
pub(crate) const A: &str = "opc.tcp://192.0.2.1:4841/";
pub(crate) const B: &str = "opc.tcp://192.0.2.2:4841/";

/// Returns ids, origins and URLs of the devices.
pub(crate) fn found(report: &Report) -> Vec<(&str, usize, &str)> {
    report.devices.iter().map(|device| (device.id.as_str(), device.origin, device.properties[0].1.as_str())).collect()
}

pub(crate) fn notes(report: &Report) -> Vec<(usize, &str, &str)> {
    report.notes.iter().map(|note| (note.origin, note.reason, note.message.as_str())).collect()
}
