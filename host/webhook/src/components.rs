//! The handlers' own `validate`: a component checks the details of a Configuration that names it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use akri_api::document::Document;
use akri_api::{Configuration, DiscoveryHandler, HandlerRules, configuration_to_model};
use akri_model::discovery::{Problem, RoundError, Trigger};
use akri_model::grant::{CompileLimits, Isolation};
use akri_model::text::dotted;
use akri_sandbox::{Call, Component, Host};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};
use parking_lot::Mutex;
use tokio::time::error::Elapsed;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::review_outcome::{Finding, ReviewOutcome, reason};

/// The path of the details in a Configuration.
const FIELD: &str = "spec.discoveryHandler.discoveryDetails";
/// Time limit of a validation by a handler.
const VALIDATE_TIMEOUT: Duration = Duration::from_secs(1);
/// The same, including the time that it waits for other validations.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(2);
/// Component files that are loaded.
const FILES: usize = 64;
/// Bytes of one, as in the agent.
const BYTES: u64 = 64 << 20;

/// The components of a directory. Clones share them.
#[derive(Clone)]
pub(crate) struct Components {
    host: Host,
    directory: PathBuf,
    loaded: Arc<Mutex<BTreeMap<String, Loaded>>>,
}

/// A file as it was when it was loaded.
#[derive(Clone)]
struct Loaded {
    version: FileVersion,
    /// None: it is no handler.
    component: Option<Component>,
}

/// The time of the last change of a file, and its size.
type FileVersion = (Option<SystemTime>, u64);

impl Components {
    /// Creates the components of a directory; none is loaded yet.
    pub(crate) fn new(host: Host, directory: PathBuf) -> Self {
        Self { host, directory, loaded: Arc::default() }
    }

    /// Loads files that are new or have changed, and forgets those that are gone.
    pub(crate) async fn refresh(&self) {
        let files = list(&self.directory);
        for (name, version) in &files {
            if self.loaded.lock().get(name).is_none_or(|known| known.version != *version) {
                let component = load(&self.host, &self.directory.join(name)).await;
                self.loaded.lock().insert(name.clone(), Loaded { version: *version, component });
            }
        }
        self.loaded.lock().retain(|name, _| files.contains_key(name));
    }

    /// Returns handlers of a name, with their files.
    fn by_name(&self, name: &str) -> BTreeMap<String, Component> {
        let loaded = self.loaded.lock();
        let handlers = loaded.iter().filter_map(|(file, loaded)| Some((file.clone(), loaded.component.clone()?)));
        handlers.filter(|(_, component)| component.description().name == name).collect()
    }

    /// Asks the handler that the Configuration names, if it is a component of the directory that a DiscoveryHandler of the
    /// cluster uses. Others are asked by the agents.
    pub(crate) async fn check_details(&self, client: &Client, configuration: &Configuration) -> ReviewOutcome {
        let candidates = self.by_name(&configuration.spec.discovery_handler.name);
        if candidates.is_empty() {
            return ReviewOutcome::default();
        }
        let handlers = match Api::<DiscoveryHandler>::all(client.clone()).list(&cached()).await {
            Ok(handlers) => handlers.items,
            Err(error) => {
                return ReviewOutcome::warning(format!(
                    "{FIELD} was not checked: no list of DiscoveryHandlers: {}",
                    reason(&error)
                ));
            }
        };
        let is_named = |handler: &DiscoveryHandler| handler.handler_name() == configuration.spec.discovery_handler.name;
        let handlers = handlers.into_iter().filter(is_named).collect();
        let Some((component, handler)) = used(candidates, handlers) else { return ReviewOutcome::default() };
        let validated = timeout(QUEUE_TIMEOUT, component.validate(call(&handler, configuration))).await;
        outcome(&handler, configuration, validated)
    }
}

/// Returns the first candidate whose file a DiscoveryHandler of the cluster uses, with that.
fn used<C>(candidates: BTreeMap<String, C>, mut handlers: Vec<DiscoveryHandler>) -> Option<(C, DiscoveryHandler)> {
    candidates.into_iter().find_map(|(file, candidate)| {
        let index = handlers.iter().position(|handler| handler.spec.component.file == file)?;
        Some((candidate, handlers.swap_remove(index)))
    })
}

/// Returns parameters of a list from the API server's cache: nothing is deleted because a handler is not in it.
fn cached() -> ListParams {
    ListParams::default().match_any()
}

/// The component files of a directory; an unreadable directory has none.
fn list(directory: &Path) -> BTreeMap<String, FileVersion> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let file = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().ok().filter(|name| name.ends_with(".wasm"))?;
        let metadata = std::fs::metadata(entry.path()).ok().filter(std::fs::Metadata::is_file)?;
        (metadata.len() <= BYTES).then(|| (name, (metadata.modified().ok(), metadata.len())))
    };
    entries.filter_map(file).take(FILES).collect()
}

async fn load(host: &Host, path: &Path) -> Option<Component> {
    let loaded = match tokio::fs::read(path).await {
        Ok(bytes) => {
            let loaded = host.load(bytes, &CompileLimits::default(), Isolation::Shared).await;
            loaded.map_err(|error| error.to_string())
        }
        Err(error) => Err(error.to_string()),
    };
    let file = path.display();
    match &loaded {
        Ok(component) => info!(%file, handler = component.description().name, "loaded a component"),
        Err(error) => warn!(%file, error, "a component cannot be loaded; details of its handler are not checked"),
    }
    loaded.ok()
}

/// Returns what the handler says of the details. If it fails, that is a warning: the agent reports the error later.
fn outcome(
    handler: &DiscoveryHandler,
    configuration: &Configuration,
    validated: Result<Result<Vec<Trigger>, RoundError>, Elapsed>,
) -> ReviewOutcome {
    let why = match validated {
        Ok(Ok(_)) => return ReviewOutcome::default(),
        Ok(Err(RoundError::InvalidDetails(problems))) => {
            let details = &configuration.spec.discovery_handler.discovery_details;
            return ReviewOutcome::invalid(findings(details, &problems));
        }
        Ok(Err(error)) => error.to_string(),
        Err(_) => "too many other Configurations wait for it".to_owned(),
    };
    ReviewOutcome::warning(format!("{FIELD} was not checked by DiscoveryHandler '{}': {why}", handler.name_any()))
}

fn call(handler: &DiscoveryHandler, configuration: &Configuration) -> Call {
    let rules = HandlerRules::from(handler);
    let model = configuration_to_model(configuration);
    let mut limits = rules.limits;
    limits.round = limits.round.min(VALIDATE_TIMEOUT);
    Call {
        subject: model.key.to_string(),
        details_json: Document::json(&model.details),
        details: model.details,
        limits,
        ..Call::default()
    }
}

/// Returns the findings about invalid details: those of the handler, and what makes them invalid YAML.
fn findings(details: &str, problems: &[Problem]) -> Vec<Finding> {
    let syntax = Document::parse_details(details).err().map(Problem::from);
    problems.iter().chain(&syntax).map(|problem| finding(details, problem)).collect()
}

/// With the line within the details, which is all that is left of the user's file here.
fn finding(details: &str, problem: &Problem) -> Finding {
    let document = Document::parse_details(details).ok().and_then(|documents| documents.into_iter().next());
    let line = document.filter(|_| details.contains('\n')).map(|document| document.line(&problem.path));
    let message = match line {
        Some(line) => format!("line {line}: {}", problem.message),
        None => problem.message.clone(),
    };
    let path = dotted(&problem.path);
    let joint = if path.is_empty() || path.starts_with('[') { "" } else { "." };
    Finding::new(format!("{FIELD}{joint}{path}"), message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{api, no_components};

    #[test] // rule 63
    fn problem_is_located_in_the_details() {
        let details = "udevRules:\n- 'KERNEL==\"video*\"'\n- 'KERNAL==\"x\"'\n";
        let problem = |path: &str| Problem { path: path.into(), reason: "InvalidRule".into(), message: "wrong".into() };
        let found = finding(details, &problem("/udevRules/1"));
        assert_eq!(
            (found.field.as_str(), found.message.as_str()),
            (&*format!("{FIELD}.udevRules[1]"), "line 3: wrong")
        );
        let found = finding("{}", &problem("/udevRules"));
        assert_eq!((found.field.as_str(), found.message.as_str()), (&*format!("{FIELD}.udevRules"), "wrong"));
        let found = findings("a: 1\nb: [", &[problem("")]);
        assert_eq!((found.len(), found[0].field.as_str(), found[0].message.as_str()), (2, FIELD, "wrong"));
        assert!(found[1].message.starts_with("invalid YAML in line 2 of the details: "), "{found:?}");
        assert_eq!(findings("a: 1", &[problem("")]).len(), 1);
    }

    fn handler(name: &str, file: &str) -> DiscoveryHandler {
        let spec = json!({"component": {"file": file}});
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
    }

    fn configuration() -> Configuration {
        let handler = json!({"name": "guest", "discoveryDetails": "word: x"});
        serde_json::from_value(json!({"metadata": {"name": "cam"}, "spec": {"discoveryHandler": handler}})).unwrap()
    }

    #[test] // rule 63
    fn component_checks_details_and_may_fail_to_answer() {
        let outcome = |validated| outcome(&handler("guest", "guest.wasm"), &configuration(), Ok(validated));
        assert_eq!(outcome(Ok(Vec::new())), ReviewOutcome::default());
        let problem = Problem { path: "/word".into(), reason: "Unknown".into(), message: "no such word".into() };
        let refused = outcome(Err(RoundError::InvalidDetails(vec![problem])));
        assert_eq!(refused.invalid, [Finding::new(format!("{FIELD}.word"), "no such word")]);
        for (error, why) in [
            (RoundError::DeadlineExceeded(VALIDATE_TIMEOUT), "did not finish within 1s"),
            (RoundError::Trapped("unreachable".to_owned()), "the handler trapped"),
        ] {
            let outcome = outcome(Err(error));
            assert!(outcome.is_allowed() && outcome.warnings[0].contains(why), "{outcome:?}");
        }
        assert_eq!(call(&handler("guest", "guest.wasm"), &configuration()).limits.round, VALIDATE_TIMEOUT);
    }

    #[tokio::test]
    async fn component_without_an_object_checks_nothing() {
        let candidates = || BTreeMap::from([("a.wasm".to_owned(), 'a'), ("guest.wasm".to_owned(), 'g')]);
        let (candidate, found) =
            used(candidates(), vec![handler("other", "other.wasm"), handler("guest", "guest.wasm")]).unwrap();
        assert_eq!((candidate, found.name_any().as_str()), ('g', "guest"));
        assert!(used(candidates(), vec![handler("other", "other.wasm")]).is_none());
        let (client, requests) = api(|_, _, _| (500, json!({})));
        let components = no_components();
        components.refresh().await;
        assert_eq!(components.check_details(&client, &configuration()).await, ReviewOutcome::default());
        assert!(requests.lock().unwrap().is_empty(), "there is no component of that name");
    }

    #[test]
    fn other_files_than_components_are_not_loaded() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("udev.wasm"), "x").unwrap();
        std::fs::write(path("udev.yaml"), "x").unwrap();
        std::fs::create_dir(path("directory.wasm")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", path("endless.wasm")).unwrap();
        std::fs::File::create(path("large.wasm")).unwrap().set_len(BYTES + 1).unwrap();
        assert_eq!(list(directory.path()).into_keys().collect::<Vec<_>>(), ["udev.wasm"]);
        assert!(list(Path::new("/nonexistent")).is_empty());
    }
}
