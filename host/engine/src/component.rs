//! A component that runs in this process, and calls of it.

use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use akri_model::device::{Device, DeviceSet};
use akri_model::discovery::{Description, RoundError, Trigger};
use akri_model::grant::{Grants, Limits};
use akri_model::property::Resolved;
use akri_model::secret_scanner::SecretScanner;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use wasmtime::Store;

use crate::bindings::{DiscoveryHandlerPre, handler};
use crate::cache::Cache;
use crate::compiled::{Compiled, ComponentBytes};
use crate::contract;
use crate::convert;
use crate::deadline::Deadline;
use crate::host::Shared;
use crate::log::LogLine;
use crate::network::resolver::Resolver;
use crate::rates::Rates;
use crate::round::{ComponentContext, Round};
use crate::tape::Tape;

/// Bytes of a component; the largest known, Python's, have 20 MiB.
pub const MAX_COMPONENT: usize = 64 << 20;
/// Rounds of one component at once: half of all, so that the others have theirs.
pub const ROUNDS_AT_ONCE_OF_COMPONENT: usize = 2;
/// Runs of the `udev` capability that one component may have under way.
const UDEV_RUNS: usize = 2;
/// Names that one component may have resolved at once. A lookup without an answer takes a thread for as long as the node is
/// set up to wait.
const LOOKUPS: usize = 32;

/// The arguments of one call.
#[derive(Clone, Default)]
pub struct Call {
    /// `namespace/name` of the Configuration, for the log.
    pub subject: String,
    /// The Configuration's `discoveryDetails`.
    pub details: String,
    /// The details as JSON, if they are YAML or JSON.
    pub details_json: Option<String>,
    /// The properties with their values.
    pub properties: Resolved,
    /// The grants of the guest.
    pub grants: Grants,
    /// The limits of the guest.
    pub limits: Limits,
    /// The cache of the handler for this Configuration.
    pub cache: Cache,
    /// Budgets shared by all calls for this Configuration.
    pub rates: Rates,
    /// The receiver of a copy of the guest's log lines, besides the log. It has all of them when the call has ended.
    pub log: Option<mpsc::Sender<LogLine>>,
    /// A tape that records or answers the guest's calls, in a host that is made for it (`LocalHost::taping`).
    pub tape: Option<Arc<dyn Tape>>,
}

/// The reason why a component is not loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum LoadError {
    /// It can't be used.
    #[error("{0}")]
    Refused(String),
    /// Compiling it takes more memory than it may.
    #[error("compiling it takes more than {} MiB of memory; limits.compile.memory of its DiscoveryHandler allows more", .0 >> 20)]
    Memory(usize),
    /// Compiling it takes more time than it may.
    #[error(
        "compiling it takes more than {0:?} of processor time; limits.compile.time of its DiscoveryHandler allows more"
    )]
    Time(Duration),
    /// The host failed, which says nothing of the component.
    #[error("it can't be loaded now: {0}")]
    Unavailable(String),
}

/// A handler that runs in this process. Clones share everything.
#[derive(Clone)]
pub struct LocalComponent {
    guest: Guest,
    shared: Arc<Shared>,
}

/// The parts of a component that its calls need. They do not keep the host, on whose threads calls run.
#[derive(Clone)]
struct Guest {
    compiled: Arc<Compiled>,
    description: Arc<Description>,
    context: Arc<ComponentContext>,
}

impl LocalComponent {
    pub(crate) async fn load(shared: Arc<Shared>, source: ComponentBytes) -> Result<Self, LoadError> {
        let compiled = load_code(&shared, source).await?;
        // Until it has described itself, its log lines go by its digest.
        let name = compiled.digest.chars().take(12).collect();
        let description = Description { name, version: String::new(), shared: false, interval: None };
        let context = ComponentContext {
            sysfs: shared.sysfs.clone(),
            rounds: Semaphore::new(ROUNDS_AT_ONCE_OF_COMPONENT),
            all_rounds: shared.rounds.clone(),
            activity: shared.runtime.activity(),
            udev_runs: Arc::new(Semaphore::new(UDEV_RUNS)),
            resolver: Arc::new(Resolver::new(shared.lookup.clone(), LOOKUPS)),
            trust: shared.trust.clone(),
            own_senders: shared.own_senders.clone(),
        };
        let mut guest = Guest { compiled, description: description.into(), context: context.into() };
        let described = on_guest_thread(&shared, guest.clone().describe()).await;
        guest.description = convert::description(described.map_err(no_description)?)?.into();
        Ok(Self { guest, shared })
    }

    /// SHA-256 of its bytes, in lower hex.
    pub fn digest(&self) -> &str {
        &self.guest.compiled.digest
    }

    /// Returns the handler's description.
    pub fn description(&self) -> &Description {
        &self.guest.description
    }

    /// The interface by which it is a handler, with the version it was made for: `akri:discovery/handler@0.1.0`.
    pub fn exported(&self) -> &str {
        &self.guest.compiled.exported
    }

    /// The interfaces it imports, such as `akri:discovery/udev@0.1.0` and `wasi:io/poll@0.2.6`, in its own order.
    pub fn imports(&self) -> &[String] {
        &self.guest.compiled.imports
    }

    /// Checks details; returns what should start a round of them besides the interval. It is a question about the details
    /// alone: the handler is granted nothing meanwhile.
    ///
    /// # Errors
    /// [`RoundError::InvalidDetails`] with what is wrong, or what kept the handler from answering.
    pub async fn validate(&self, call: Call) -> Result<Vec<Trigger>, RoundError> {
        on_guest_thread(&self.shared, self.guest.clone().validate(call)).await
    }

    /// Runs a round. Returns every device that the handler sees now, not yet checked against the limits
    /// ([`DeviceSet::check`]).
    ///
    /// It waits for its turn, for at most four rounds run at once, two of them of one component; from then on it takes
    /// `limits.round` at most. Dropping the future ends the round.
    ///
    /// # Errors
    /// Why there is no answer. None of them means that a device has gone.
    pub async fn discover(&self, call: Call) -> Result<DeviceSet, RoundError> {
        let limit = call.limits.round;
        let tape = call.tape.clone();
        let finding = on_guest_thread(&self.shared, self.guest.clone().discover(call));
        match tape {
            None => finding.await,
            Some(tape) => tokio::select! {
                found = finding => found,
                () = tape.ended() => Err(RoundError::DeadlineExceeded(limit)),
            },
        }
    }

    /// Checks details on the thread of the caller, a task of [`LocalHost::block_on`](crate::LocalHost::block_on).
    ///
    /// # Errors
    /// As [`Self::validate`].
    pub async fn validate_here(&self, call: Call) -> Result<Vec<Trigger>, RoundError> {
        self.guest.clone().validate(call).await
    }

    /// Runs a round on the thread of the caller, a task of [`LocalHost::block_on`](crate::LocalHost::block_on).
    ///
    /// # Errors
    /// As [`Self::discover`].
    pub async fn discover_here(&self, call: Call) -> Result<DeviceSet, RoundError> {
        self.guest.clone().discover(call).await
    }

    #[cfg(test)]
    pub(crate) fn shares_code_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.guest.compiled, &other.guest.compiled)
    }

    #[cfg(test)]
    pub(crate) fn permits(&self) -> &Arc<Semaphore> {
        &self.shared.rounds
    }

    #[cfg(test)]
    pub(crate) fn parts(&self) -> (DiscoveryHandlerPre<Round>, Arc<ComponentContext>, Arc<Shared>) {
        (self.guest.compiled.pre.clone(), self.guest.context.clone(), self.shared.clone())
    }
}

impl Guest {
    async fn validate(self, call: Call) -> Result<Vec<Trigger>, RoundError> {
        let call = Call { grants: Grants::default(), ..call };
        let ask: Ask<_> = |handler, store, details| Box::pin(handler.call_validate(store, details));
        let validated = self.run(call, ask, |answer, round| {
            let limits = &round.call.limits;
            let refused = |problems| RoundError::InvalidDetails(convert::problems(problems, limits));
            Ok(convert::triggers(&answer.map_err(refused)?, limits, &round.log))
        });
        validated.await.map_err(|error| match error {
            RoundError::Trapped(why) => RoundError::Trapped(format!("while it validated the details, {why}")),
            error => error,
        })
    }

    async fn discover(self, call: Call) -> Result<DeviceSet, RoundError> {
        let (notes, rates) = (call.limits.notes, call.rates.clone());
        let (set, scanner, deadline) = self.find(call).await?;
        if scanner.is_empty() {
            return Ok(set);
        }
        // A part of a second, for a large set: no guest's thread waits for it.
        let withheld = tokio::task::spawn_blocking(move || {
            let began = Instant::now();
            let withheld = scanner.withhold(set, notes, || deadline.is_over());
            rates.add_processor_time(began.elapsed());
            withheld.map_err(|error| scanner.hide_in_error(error))
        });
        withheld.await.map_err(|error| RoundError::Unavailable(error.to_string()))?
    }

    async fn find(&self, call: Call) -> Result<(DeviceSet, Arc<SecretScanner>, Deadline), RoundError> {
        let ask: Ask<_> = |handler, store, details| Box::pin(handler.call_discover(store, details));
        self.run(call, ask, |answer, mut round| {
            round.commit();
            let found = answer.map_err(|error| {
                convert::discovery_error(error, &round.call.limits).map_texts(|text| round.log.complete(text))
            })?;
            let allowed = found.iter().take(round.call.limits.devices);
            allowed.filter_map(convert::doubled_property).for_each(|doubled| round.log.refused(&doubled));
            let set = round.found(found.into_iter().map(Device::from).collect());
            Ok((set, Arc::clone(round.log.scanner()), round.deadline))
        })
        .await
    }

    async fn describe(self) -> Result<handler::Description, RoundError> {
        let ask: Ask<_> = |handler, store, _| Box::pin(handler.call_describe(store));
        self.run(Call::default(), ask, |described, _| Ok(described)).await
    }

    /// Runs one export in a store of its own, when it has its turn, until its deadline.
    async fn run<T: 'static, R: Send + 'static>(
        &self,
        call: Call,
        ask: Ask<T>,
        take: Take<T, R>,
    ) -> Result<R, RoundError> {
        let context = &self.context;
        // Those of one component queue among themselves first: in the common queue there are never more than two of them.
        let _own = context.rounds.acquire().await.map_err(|_| shutting_down())?;
        let _permit = context.all_rounds.acquire().await.map_err(|_| shutting_down())?;
        let deadline = Deadline::of(&call.limits);
        let round = Round::new(call, &self.description.name, deadline, context.clone());
        let guest = serve(self.compiled.pre.clone(), round, ask, take);
        let failed = || RoundError::Trapped("the host failed while it served the handler".to_owned());
        let counted = context.activity.run(guest);
        deadline.enforce(async { counted.await.unwrap_or_else(|| Err(failed())) }).await
    }
}

fn no_description(error: RoundError) -> LoadError {
    match error {
        // Types of exports are compared when a component is instantiated first.
        RoundError::Trapped(why) if why.starts_with("expected ") => contract::link_error(&why),
        RoundError::Unavailable(_) | RoundError::DeadlineExceeded(_) => {
            LoadError::Unavailable(format!("the handler has not described itself: {error}"))
        }
        error => LoadError::Refused(format!("the handler does not describe itself: {error}")),
    }
}

/// Returns the code of a component.
async fn load_code(shared: &Arc<Shared>, source: ComponentBytes) -> Result<Arc<Compiled>, LoadError> {
    // One at a time: of two objects with one component, the second finds what the first has loaded.
    let mut compiled = shared.compiled.clone().lock_owned().await;
    let shared = shared.clone();
    let load = tokio::task::spawn_blocking(move || compiled.load(&shared.engine, &shared.linker, &source));
    load.await.map_err(|error| LoadError::Unavailable(format!("its compilation was ended: {error}")))?
}

/// A function that calls an export with the details.
type Ask<T> = for<'a> fn(&'a handler::Guest, &'a mut Store<Round>, &'a str) -> Answer<'a, T>;
type Answer<'a, T> = Pin<Box<dyn Future<Output = wasmtime::Result<T>> + Send + 'a>>;
/// A function that converts the result of an export, with the state of the round.
type Take<T, R> = fn(T, Round) -> Result<R, RoundError>;

async fn serve<T, R>(
    pre: DiscoveryHandlerPre<Round>,
    round: Round,
    ask: Ask<T>,
    take: Take<T, R>,
) -> Result<R, RoundError> {
    let details = round.call.details.clone();
    let mut store = round.into_store(pre.engine());
    let answer = match pre.instantiate_async(&mut store).await {
        Ok(handler) => ask(handler.akri_discovery_handler(), &mut store, &details).await,
        Err(error) => Err(error),
    };
    let round = store.into_data();
    if round.set.secrets_revealed > 0 {
        let (configuration, times) = (&round.call.subject, round.set.secrets_revealed);
        tracing::debug!(configuration, "secrets were revealed {times} times");
    }
    let scanner = Arc::clone(round.log.scanner());
    let ended = match answer {
        Ok(answer) => take(answer, round),
        Err(error) => Err(round.failure(&error)),
    };
    ended.map_err(|error| scanner.hide_in_error(error))
}

/// Awaits a call on a thread for guests. Dropping the future ends the call.
async fn on_guest_thread<T: Send + 'static>(
    shared: &Shared,
    call: impl Future<Output = Result<T, RoundError>> + Send + 'static,
) -> Result<T, RoundError> {
    // A bare handle would let the task run on.
    let mut task = JoinSet::new();
    task.spawn_on(call, shared.runtime.handle().ok_or_else(shutting_down)?);
    task.join_next().await.and_then(Result::ok).unwrap_or_else(|| Err(shutting_down()))
}

fn shutting_down() -> RoundError {
    RoundError::Unavailable("the host is shutting down".to_owned())
}
