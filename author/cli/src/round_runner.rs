//! Rounds of a component, with all their results.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use akri_api::{HandlerRules, data};
use akri_cassette::Recorder;
use akri_cli::args::node_name;
use akri_cli::component::read;
use akri_cli::device::DiscoveredDevice;
use akri_cli::subject::{self, Subject, handlers};
use akri_discovery::{call, details_json, ungranted, validate_details};
use akri_engine::LocalComponent;
use akri_model::device::{DeviceSet, Note};
use akri_model::discovery::{RoundError, Trigger};
use akri_model::resolve::{Values, resolve};
use akri_node::admission::admit;
use akri_sandbox::{Cache, Call, Component, Host, LogLine, Rates};
use serde::Serialize;

use crate::args::{ObjectArgs, RoundArgs};
use crate::component::load_with_rules;
use crate::record::{self, Recording};
use crate::rules::subjects;
use crate::validate;

/// A component with the rules of its rounds.
pub(crate) struct RoundRunner {
    pub(crate) component: Component,
    /// The component in this process, for rounds that are recorded or traced.
    pub(crate) taped: Option<LocalComponent>,
    pub(crate) load: Load,
    pub(crate) rules: HandlerRules,
    /// The Configurations of the file, each with what its rounds have in common.
    pub(crate) subjects: Vec<(Subject, RoundState)>,
    /// Set if there is a DiscoveryHandler, also if that is of another component.
    pub(crate) has_object: bool,
    pub(crate) node: String,
    values: Values,
    pub(crate) is_traced: bool,
}

/// The state between the rounds of a Configuration. What each of them is refused is logged until it changes.
#[derive(Default)]
pub(crate) struct RoundState {
    cache: Cache,
    rates: Rates,
    /// The rates of checks of the details.
    validation_rates: Rates,
}

/// The way in which the component was loaded.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Load {
    pub(crate) milliseconds: f64,
    /// Set if it was compiled, in place of using code from the cache.
    pub(crate) compiled: bool,
}

/// The results of a round, as they are printed.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RunReport {
    pub(crate) configuration: String,
    pub(crate) handler: String,
    pub(crate) version: String,
    pub(crate) digest: String,
    pub(crate) milliseconds: f64,
    /// Memory that the round took of `limits.memory`.
    pub(crate) memory_bytes: u64,
    pub(crate) load: Load,
    pub(crate) triggers: Vec<String>,
    pub(crate) devices: Vec<DiscoveredDevice>,
    /// Ids of withheld devices; the reasons are in notes.
    pub(crate) withheld: Vec<String>,
    /// Origins whose known devices are kept.
    pub(crate) kept: Vec<String>,
    pub(crate) notes: Vec<Note>,
    pub(crate) notes_dropped: u64,
    /// Calls that the host refused, with the grant that would allow each.
    pub(crate) refused: Vec<String>,
    pub(crate) log: Vec<Line>,
}

/// A log line of the component.
#[derive(Debug, Serialize)]
pub(crate) struct Line {
    level: String,
    context: String,
    message: String,
}

impl Load {
    /// Describes the time it took and the origin of the code.
    pub(crate) fn text(&self) -> String {
        let how = if self.compiled { "compiled" } else { "from the cache" };
        format!("loaded in {:.0} ms, {how}", self.milliseconds)
    }
}

impl RoundRunner {
    /// Loads a component into the sandbox, with the Configurations of a file.
    pub(crate) async fn load(host: &Host, args: &RoundArgs) -> anyhow::Result<Self> {
        let RoundArgs { component, file, object: ObjectArgs { handler_object: own }, .. } = args;
        let (node, own) = (node_name(args.node_name.clone())?, own.as_ref());
        let manifests = subject::read(file)?;
        let begun = Instant::now();
        let (component, rules, _) = load_with_rules(host, (component, read(component)?), own, &manifests).await?;
        let load = Load { milliseconds: milliseconds(begun.elapsed()), compiled: component.was_compiled() };
        let subjects = subjects(file, &manifests, &component.description().name)?;
        let subjects = subjects.into_iter().map(|subject| (subject, RoundState::default())).collect();
        let has_object = own.is_some() || handlers(&manifests).next().is_some();
        let values = data::values(&manifests);
        Ok(Self { component, taped: None, load, rules, subjects, has_object, values, node, is_traced: false })
    }

    /// Runs a round of a Configuration.
    pub(crate) async fn run(
        &self,
        subject: &Subject,
        state: &RoundState,
        mut recording: Option<&mut Recording>,
    ) -> Result<RunReport, RoundError> {
        let configuration = &subject.configuration;
        let properties = resolve(&configuration.properties, &self.values).map_err(RoundError::PropertiesUnresolved)?;
        let (log, lines) = mpsc::channel();
        let details = details_json(&configuration.details).await;
        let call = call(configuration, details, &self.rules, properties, state.cache.clone());
        let call = Call { log: Some(log), rates: state.validation_rates.clone(), ..call };
        let validated = self.validate(&call, recording.as_deref_mut()).await?;
        let call = Call { rates: state.rates.clone(), ..call };
        let (granted, withdrawn): (Vec<Trigger>, Vec<Trigger>) =
            validated.iter().cloned().partition(|trigger| ungranted(&self.rules.grants, trigger).is_none());
        let begun = Instant::now();
        let found = self.discover(call, validated.iter().map(validate::trigger).collect(), recording).await;
        let milliseconds = milliseconds(begun.elapsed());
        let set = admit(found?, configuration, &self.rules.grants, &self.rules.limits, || false)?;
        let (refused, log): (Vec<LogLine>, Vec<LogLine>) = lines.try_iter().partition(|line| line.is_refusal);
        let refused = refused.into_iter().map(|line| line.message);
        let without = withdrawn.iter().filter_map(|trigger| ungranted(&self.rules.grants, trigger));
        let line = |line: LogLine| Line { level: line.level.to_string(), context: line.context, message: line.message };
        let (description, shared) = (self.component.description(), self.shared());
        Ok(RunReport {
            configuration: configuration.key.to_string(),
            handler: description.name.clone(),
            version: description.version.clone(),
            digest: format!("sha256:{}", self.component.digest()),
            milliseconds,
            memory_bytes: set.memory_bytes,
            load: self.load.clone(),
            triggers: granted.iter().map(validate::trigger).collect(),
            devices: DiscoveredDevice::all(&set.devices, configuration, shared, &self.node),
            withheld: set.withheld.into_iter().collect(),
            kept: set.kept.into_iter().collect(),
            notes: set.notes,
            notes_dropped: set.notes_dropped,
            refused: refused.chain(without).collect(),
            log: log.into_iter().map(line).collect(),
        })
    }

    /// Checks the details. A recording has the error of a round that fails here, as a replay will find it.
    async fn validate(&self, call: &Call, recording: Option<&mut Recording>) -> Result<Vec<Trigger>, RoundError> {
        let validated = validate_details(&self.component, call.clone()).await;
        if let (Err(_), Some(taped), Some(recording)) = (&validated, &self.taped, recording)
            && let Err(error) = taped.validate(call.clone()).await
        {
            let recorder = Recorder::new(recording.cassette.next_seed(), None);
            recording.add(call, &recorder, None, &Err(error));
        }
        validated
    }

    /// Runs a round, with a recorder if it is recorded or traced.
    async fn discover(
        &self,
        mut call: Call,
        triggers: Vec<String>,
        recording: Option<&mut Recording>,
    ) -> Result<DeviceSet, RoundError> {
        let Some(taped) = &self.taped else { return self.component.discover(call).await };
        let seed = recording.as_ref().map_or(0, |recording| recording.cassette.next_seed());
        let trace = self.is_traced.then(|| record::trace(&call.properties));
        let recorder = Arc::new(Recorder::new(seed, trace));
        call.tape = Some(recorder.clone());
        let found = taped.discover(call.clone()).await;
        recorder.end_trace();
        let result = found.and_then(|set| set.check(&call.limits).map(|()| set));
        if let Some(recording) = recording {
            recording.add(&call, &recorder, Some(triggers), &result);
        }
        result
    }

    /// Returns whether devices are shared by the nodes that see them.
    pub(crate) fn shared(&self) -> bool {
        self.rules.shared.unwrap_or(self.component.description().shared)
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
