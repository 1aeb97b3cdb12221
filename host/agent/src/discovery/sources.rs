//! Who reports the devices of one Configuration, put together: the rounds of a component, and a stream from each endpoint of
//! the remote handler of that name (rule 31).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use akri_model::configuration::Configuration;
use akri_model::grant::Limits;
use akri_model::remote::{Address, Endpoints};
use akri_model::sources::{Found, Said, Source, Sources as Model};
use tokio::sync::mpsc::OwnedPermit;
use tokio::sync::watch::error::RecvError;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::properties::{Answer, Properties};
use super::registry::Handlers;
use super::rounds::Rounds;
use super::{Outcome, moment};
use crate::metrics::Metrics;
use crate::remote::{Heard, News, Question, Remote, Stream};

/// Shortest pause between outcomes that streams cause; those of rounds are never held up.
const PACE: Duration = Duration::from_millis(50);

/// News of streams that wait to be looked at.
const NEWS: usize = 8;

/// All sources of one Configuration; they stop when this is dropped.
#[derive(Debug)]
pub struct Sources {
    task: JoinHandle<()>,
}

/// What the owner of a Configuration is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// What came of looking, all sources taken together.
    Outcome(Outcome),
    /// A remote handler is connected, and none has reported devices yet.
    Silent,
    /// A remote handler has gone. Nobody can tell how its devices are, until one of its name reports some.
    Lost,
}

/// Where sources come from; cheap to clone.
#[derive(Clone)]
pub struct Providers {
    /// Components.
    pub handlers: watch::Receiver<Arc<Handlers>>,
    /// Values of properties.
    pub properties: Properties,
    /// Remote handlers.
    pub remote: Remote,
    /// What is counted.
    pub metrics: Metrics,
}

impl Sources {
    /// Starts them. Changes of the Configuration, its properties and the handlers take effect at once. `shared` is what is
    /// taken for devices whose handler has not said whether many nodes see them.
    pub fn start(
        configuration: watch::Receiver<Arc<Configuration>>,
        providers: Providers,
        shared: bool,
        owner: mpsc::Sender<Told>,
    ) -> Self {
        let runner = Runner::new(configuration, providers, shared, owner);
        Self { task: tokio::spawn(runner.run()) }
    }
}

impl Drop for Sources {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Runner {
    configuration: watch::Receiver<Arc<Configuration>>,
    providers: Providers,
    endpoints: watch::Receiver<Arc<Endpoints>>,
    shared: bool,
    owner: mpsc::Sender<Told>,
    asked: Asked,
    question: watch::Sender<Arc<Question>>,
    /// When there is something to tell.
    due: Option<Instant>,
    /// When something was told last.
    told: Instant,
}

/// All that is about one handler, and ends when the Configuration names another one.
struct Asked {
    handler: String,
    model: Model,
    _rounds: Rounds,
    outcomes: mpsc::Receiver<Outcome>,
    streams: BTreeMap<Address, Listened>,
    heard: mpsc::Receiver<Heard>,
    hears: mpsc::Sender<Heard>,
    /// What there is instead of the component, in words.
    no_component: String,
}

struct Listened {
    stream: Stream,
    /// Since when the stream has stood without a word.
    silent: Option<Instant>,
}

impl Runner {
    fn new(
        mut configuration: watch::Receiver<Arc<Configuration>>,
        mut providers: Providers,
        shared: bool,
        owner: mpsc::Sender<Told>,
    ) -> Self {
        let now = configuration.borrow_and_update().clone();
        let question = watch::Sender::new(Arc::new(question(&now, providers.properties.of(&now))));
        let asked = Asked::new(&now, configuration.clone(), &providers);
        let endpoints = providers.remote.endpoints();
        Self { configuration, providers, endpoints, shared, owner, asked, question, due: None, told: Instant::now() }
    }

    async fn run(mut self) {
        self.look_for_endpoints(true);
        while self.next().await.is_ok() {}
    }

    /// Waits for something to happen. What has been heard is put together before it is told, so that an owner that has been
    /// busy hears of the last state and not of those before.
    async fn next(&mut self) -> Result<(), Over> {
        let configuration = self.configuration.borrow().clone();
        let answer = self.question.borrow().properties.clone();
        let patience = self.providers.remote.patience();
        let silence = self.asked.silent_since().map(|since| since + patience);
        tokio::select! {
            biased;
            Some(outcome) = self.asked.outcomes.recv() => {
                self.asked.component(outcome);
                self.due = Some(Instant::now());
            }
            Some(heard) = self.asked.heard.recv() => {
                self.asked.heard(heard);
                self.due.get_or_insert(self.told + PACE);
            }
            changed = self.configuration.changed() => {
                changed?;
                self.reconfigured();
            }
            other = self.providers.properties.other_than(&answer, &configuration) => {
                self.ask(&configuration, other?);
            }
            changed = self.endpoints.changed() => {
                changed?;
                self.look_for_endpoints(false);
            }
            () = moment(silence) => {
                self.asked.silence(patience);
                self.due = Some(Instant::now());
            }
            permit = turn(self.due, self.owner.clone()) => self.tell(permit.ok_or(Over)?).await?,
        }
        Ok(())
    }

    fn reconfigured(&mut self) {
        let configuration = self.configuration.borrow_and_update().clone();
        let answer = self.providers.properties.of(&configuration);
        let is_other = configuration.handler != self.asked.handler;
        if is_other {
            // Before there is another question, which may hold secrets that are none of the old handler's business.
            self.asked = Asked::new(&configuration, self.configuration.clone(), &self.providers);
        }
        self.ask(&configuration, answer);
        if is_other {
            self.look_for_endpoints(true);
        }
    }

    fn ask(&self, configuration: &Configuration, answer: Answer) {
        let question = question(configuration, answer);
        self.question.send_if_modified(|asked| {
            let differs = **asked != question;
            *asked = Arc::new(question);
            differs
        });
    }

    /// Listens to every endpoint of the handler. Who is there at the first look may know devices from before.
    fn look_for_endpoints(&mut self, first: bool) {
        let endpoints = self.endpoints.borrow_and_update().clone();
        let user = self.configuration.borrow().key.clone();
        let asked = &mut self.asked;
        let is_gone =
            |address: &Address| endpoints.of(&asked.handler).all(|(endpoint, _)| endpoint.address != *address);
        for (address, _) in asked.streams.extract_if(.., |address, _| is_gone(address)) {
            asked.model.vanish(&Source::Remote(address));
            self.due = Some(Instant::now());
        }
        for (endpoint, record) in endpoints.of(&asked.handler) {
            asked.model.appear(Source::Remote(endpoint.address.clone()), record.shared, first);
            let listened = asked.streams.entry(endpoint.address.clone()).or_insert_with(|| {
                let (question, heard) = (self.question.subscribe(), asked.hears.clone());
                let stream = Stream::start(&self.providers.remote, endpoint.clone(), user.clone(), question, heard);
                Listened { stream, silent: None }
            });
            listened.stream.registered(record.registrations);
        }
    }

    /// Tells the owner what all sources say together.
    async fn tell(&mut self, permit: OwnedPermit<Told>) -> Result<(), Over> {
        (self.due, self.told) = (None, Instant::now());
        let mut told = self.said().into_iter();
        let Some(first) = told.next() else { return Ok(()) };
        permit.send(first);
        for next in told {
            self.owner.send(next).await.map_err(|_| Over)?;
        }
        Ok(())
    }

    fn said(&mut self) -> Vec<Told> {
        let said = self.asked.model.said(Limits::default().notes);
        let lost = self.asked.model.is_lost() && !matches!(said, Said::Found(_));
        let mut told: Vec<Told> = lost.then_some(Told::Lost).into_iter().collect();
        match said {
            Said::Nobody => told.push(Told::Outcome(Outcome::NoHandler(self.nobody()))),
            Said::Nothing => told.extend(self.asked.is_connected().then_some(Told::Silent)),
            Said::Failed(error, untold) => {
                told.extend(untold.map(|untold| self.found(untold)));
                told.push(Told::Outcome(Outcome::Failed(Arc::new(error))));
            }
            Said::Found(all) => told.push(self.found(all)),
        }
        told
    }

    fn found(&self, found: Found) -> Told {
        let Found { set, shared } = found;
        Told::Outcome(Outcome::Found { set, shared: shared.unwrap_or(self.shared) })
    }

    fn nobody(&self) -> String {
        let socket = self.providers.remote.socket().display();
        format!("{}; none of that name has registered at {socket}", self.asked.no_component)
    }
}

impl Asked {
    fn new(now: &Configuration, configuration: watch::Receiver<Arc<Configuration>>, providers: &Providers) -> Self {
        let Providers { handlers, properties, metrics, .. } = providers.clone();
        let (tells, outcomes) = mpsc::channel(1);
        let (hears, heard) = mpsc::channel(NEWS);
        let mut model = Model::default();
        model.appear(Source::Component, None, true);
        let _rounds = Rounds::start(configuration, handlers, properties, tells, metrics);
        let (handler, streams) = (now.handler.clone(), BTreeMap::new());
        Self { handler, model, _rounds, outcomes, streams, heard, hears, no_component: String::new() }
    }

    fn component(&mut self, outcome: Outcome) {
        let component = Source::Component;
        match outcome {
            Outcome::NoHandler(message) => {
                self.model.absent(&component);
                self.no_component = message;
            }
            Outcome::Failed(error) => {
                self.model.appear(component.clone(), None, false);
                self.model.failed(&component, (*error).clone());
            }
            Outcome::Found { set, shared } => {
                self.model.appear(component.clone(), Some(shared), false);
                self.model.found(&component, set);
            }
        }
    }

    fn heard(&mut self, Heard { address, news }: Heard) {
        let Some(listened) = self.streams.get_mut(&address) else { return };
        let source = Source::Remote(address);
        listened.silent = None;
        match news {
            News::Connected => {
                listened.silent = Some(Instant::now());
                self.model.recovered(&source);
            }
            News::Found(set) => self.model.found(&source, set),
            News::Failed(error) => self.model.failed(&source, error),
        }
    }

    fn is_connected(&self) -> bool {
        self.streams.values().any(|listened| listened.silent.is_some())
    }

    fn silent_since(&self) -> Option<Instant> {
        self.streams.values().filter_map(|listened| listened.silent).min()
    }

    /// What those said before that have been silent for too long on their new streams no longer counts. Upstream Akri's
    /// handlers are silent while they see nothing.
    fn silence(&mut self, patience: Duration) {
        let now = Instant::now();
        for (address, listened) in &mut self.streams {
            if listened.silent.is_some_and(|since| since + patience <= now) {
                listened.silent = None;
                self.model.silent(&Source::Remote(address.clone()));
            }
        }
    }
}

fn question(configuration: &Configuration, properties: Answer) -> Question {
    Question { details: configuration.details.clone(), properties }
}

/// Waits until it is time to tell something and the owner has room for it.
async fn turn(due: Option<Instant>, owner: mpsc::Sender<Told>) -> Option<OwnedPermit<Told>> {
    moment(due).await;
    owner.reserve_owned().await.ok()
}

/// Nobody listens any more, or nothing can change.
struct Over;

impl From<RecvError> for Over {
    fn from(_: RecvError) -> Self {
        Self
    }
}
