//! Rounds of a component, with all their results.

use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use akri_api::manifest::Manifest;
use akri_api::{HandlerRules, data};
use akri_cassette::{Recorder, taping_host};
use akri_cli::args::HostArgs;
use akri_cli::device::DiscoveredDevice;
use akri_cli::program::component_host;
use akri_cli::subject::Subject;
use akri_discovery::{call, details_json, explain_details, validate_details};
use akri_engine::LocalComponent;
use akri_model::device::{DeviceSet, Note};
use akri_model::discovery::{Description, RoundError, Trigger};
use akri_model::resolve::{Values, resolve};
use akri_node::admission::admit;
use akri_sandbox::{Cache, Call, Component, Host, LogLine};
use anyhow::anyhow;
use serde::Serialize;

use crate::component::{engine_config, load_error, load_with_rules, read};
use crate::record::{self, Recording};
use crate::validate;

/// A component with the rules of its rounds.
pub(crate) struct RoundRunner {
    pub(crate) component: RunnableComponent,
    pub(crate) load: Load,
    pub(crate) rules: HandlerRules,
    values: Values,
    node: String,
    is_traced: bool,
}

/// A component: in the sandbox, or in this process if its calls have a tape.
pub(crate) enum RunnableComponent {
    Sandboxed(Component),
    Taped(LocalComponent),
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

/// A round that has succeeded.
pub(crate) struct FinishedRound {
    pub(crate) set: DeviceSet,
    took: Duration,
    triggers: Vec<String>,
    log: Vec<LogLine>,
}

impl RunnableComponent {
    pub(crate) fn description(&self) -> &Description {
        match self {
            Self::Sandboxed(component) => component.description(),
            Self::Taped(component) => component.description(),
        }
    }

    fn digest(&self) -> &str {
        match self {
            Self::Sandboxed(component) => component.digest(),
            Self::Taped(component) => component.digest(),
        }
    }

    async fn validate(&self, call: Call) -> Result<Vec<Trigger>, RoundError> {
        match self {
            Self::Sandboxed(component) => validate_details(component, call).await,
            Self::Taped(component) => {
                let details = call.details.clone();
                explain_details(component.validate(call).await, details).await
            }
        }
    }

    async fn discover(&self, call: Call) -> Result<DeviceSet, RoundError> {
        match self {
            Self::Sandboxed(component) => component.discover(call).await,
            Self::Taped(component) => {
                let limits = call.limits.clone();
                component.discover(call).await.and_then(|set| set.check(&limits).map(|()| set))
            }
        }
    }
}

impl Load {
    fn new(begun: Instant, compiled: bool) -> Self {
        Self { milliseconds: milliseconds(begun.elapsed()), compiled }
    }

    /// Describes the time it took and the origin of the code.
    pub(crate) fn text(&self) -> String {
        let how = if self.compiled { "compiled" } else { "from the cache" };
        format!("loaded in {:.0} ms, {how}", self.milliseconds)
    }
}

impl RoundRunner {
    /// Loads a component into the sandbox.
    pub(crate) async fn load(
        host: &Host,
        path: &Path,
        own: Option<&PathBuf>,
        manifests: &[Manifest],
        node: String,
    ) -> anyhow::Result<Self> {
        let begun = Instant::now();
        let (component, rules) = load_with_rules(host, path, own, manifests).await?;
        let load = Load::new(begun, component.was_compiled());
        let (component, values) = (RunnableComponent::Sandboxed(component), data::values(manifests));
        Ok(Self { component, load, rules, values, node, is_traced: false })
    }

    /// Loads a component into this process, for rounds that are recorded or traced. The sandbox has it compiled.
    pub(crate) async fn load_taped(
        host: &HostArgs,
        path: &Path,
        own: Option<&PathBuf>,
        manifests: &[Manifest],
        node: String,
        is_traced: bool,
    ) -> anyhow::Result<Self> {
        let host = taping_host(engine_config(Some(host)));
        let host = host.map_err(|error| anyhow!("cannot start the component host: {error}"))?;
        let begun = Instant::now();
        let (compiled, rules) = load_with_rules(&component_host(None)?, path, own, manifests).await?;
        let component = host.load(read(path).await?).await.map_err(|error| load_error(path, &error.into()))?;
        let load = Load::new(begun, compiled.was_compiled());
        let (component, values) = (RunnableComponent::Taped(component), data::values(manifests));
        Ok(Self { component, load, rules, values, node, is_traced })
    }

    /// Runs a round of a Configuration.
    pub(crate) async fn run(
        &self,
        subject: &Subject,
        cache: &Cache,
        recording: Option<&mut Recording>,
    ) -> Result<FinishedRound, RoundError> {
        let configuration = &subject.configuration;
        let properties = resolve(&configuration.properties, &self.values).map_err(RoundError::PropertiesUnresolved)?;
        let (log, lines) = mpsc::channel();
        let details = details_json(&configuration.details).await;
        let mut call = call(configuration, details, &self.rules, properties, cache.clone());
        let triggers = self.component.validate(call.clone()).await?;
        let triggers: Vec<String> = triggers.iter().map(validate::trigger).collect();
        call.log = Some(log);
        let begun = Instant::now();
        let found = self.discover(call, &triggers, recording).await;
        let took = begun.elapsed();
        let set = admit(found?, &self.rules.grants, &self.rules.limits);
        Ok(FinishedRound { set, took, triggers, log: lines.try_iter().collect() })
    }

    /// Runs a round, with a recorder if one was asked for.
    async fn discover(
        &self,
        mut call: Call,
        triggers: &[String],
        recording: Option<&mut Recording>,
    ) -> Result<DeviceSet, RoundError> {
        if recording.is_none() && !self.is_traced {
            return self.component.discover(call).await;
        }
        let (sender, printing) = self.is_traced.then(|| record::trace(&call.properties)).unzip();
        let recorder = match &recording {
            Some(recording) => recording.recorder(sender),
            None => Arc::new(Recorder::new(0, sender)),
        };
        call.tape = Some(recorder.clone());
        let result = self.component.discover(call.clone()).await;
        if let Some(recording) = recording {
            recording.add(&call, &recorder, triggers.to_vec(), &result);
        }
        drop((call, recorder));
        if let Some(printing) = printing {
            let _ = tokio::task::spawn_blocking(|| printing.join()).await;
        }
        result
    }

    /// Returns whether devices are shared by the nodes that see them.
    pub(crate) fn shared(&self) -> bool {
        self.rules.shared.unwrap_or(self.component.description().shared)
    }

    /// Describes a round.
    pub(crate) fn report(&self, subject: &Subject, round: FinishedRound) -> RunReport {
        let FinishedRound { set, took, triggers, log } = round;
        let (refused, lines): (Vec<LogLine>, Vec<LogLine>) = log.into_iter().partition(|line| line.is_refusal);
        let (description, configuration) = (self.component.description(), &subject.configuration);
        let line = |line: LogLine| Line { level: line.level.to_string(), context: line.context, message: line.message };
        let shared = self.shared();
        let device = |device| DiscoveredDevice::new(device, configuration, shared, &self.node);
        RunReport {
            configuration: configuration.key.to_string(),
            handler: description.name.clone(),
            version: description.version.clone(),
            digest: format!("sha256:{}", self.component.digest()),
            milliseconds: milliseconds(took),
            memory_bytes: set.memory_bytes,
            load: self.load.clone(),
            triggers,
            devices: set.devices.into_iter().map(device).collect(),
            withheld: set.withheld.into_iter().collect(),
            kept: set.kept.into_iter().collect(),
            notes: set.notes,
            notes_dropped: set.notes_dropped,
            refused: refused.into_iter().map(|line| line.message).collect(),
            log: lines.into_iter().map(line).collect(),
        }
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
