//! The handlers' own `validate`: a component checks the details of a Configuration that names it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use akri_api::document::Document;
use akri_api::manifest::dotted;
use akri_api::{Configuration, DiscoveryHandler, HandlerRules, configuration_to_model};
use akri_model::discovery::{Problem, RoundError, Trigger};
use akri_model::grant::{CompileLimits, Isolation};
use akri_sandbox::{Call, Component, Host};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};
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
    handler: Option<LoadedHandler>,
}

/// Asks a handler about details.
type Validate = dyn Fn(Call) -> BoxFuture<'static, Result<Vec<Trigger>, RoundError>> + Send + Sync;

/// A handler that is asked about details.
#[derive(Clone)]
struct LoadedHandler {
    name: String,
    validate: Arc<Validate>,
}

impl From<Component> for LoadedHandler {
    fn from(component: Component) -> Self {
        let name = component.description().name.clone();
        let validate = move |call| {
            let component = component.clone();
            async move { component.validate(call).await }.boxed()
        };
        Self { name, validate: Arc::new(validate) }
    }
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
            if self.loaded().get(name).is_none_or(|known| known.version != *version) {
                let handler = load(&self.host, &self.directory.join(name)).await.map(LoadedHandler::from);
                self.loaded().insert(name.clone(), Loaded { version: *version, handler });
            }
        }
        self.loaded().retain(|name, _| files.contains_key(name));
    }

    fn loaded(&self) -> MutexGuard<'_, BTreeMap<String, Loaded>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns handlers of a name, with their files.
    fn by_name(&self, name: &str) -> Vec<(String, LoadedHandler)> {
        let loaded = self.loaded();
        let handlers = loaded.iter().filter_map(|(file, loaded)| Some((file.clone(), loaded.handler.clone()?)));
        handlers.filter(|(_, handler)| handler.name == name).collect()
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
        let used = candidates.iter().find_map(|(file, loaded)| {
            Some((loaded, handlers.iter().find(|handler| handler.spec.component.file == *file)?))
        });
        match used {
            Some((loaded, handler)) => ask(loaded, handler, configuration).await,
            None => ReviewOutcome::default(),
        }
    }
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

/// Validates the details. If the handler fails, that is a warning: the agent reports the error later.
async fn ask(loaded: &LoadedHandler, handler: &DiscoveryHandler, configuration: &Configuration) -> ReviewOutcome {
    match timeout(QUEUE_TIMEOUT, (loaded.validate)(call(handler, configuration))).await {
        Ok(Ok(_)) => ReviewOutcome::default(),
        Ok(Err(RoundError::InvalidDetails(problems))) => {
            let details = &configuration.spec.discovery_handler.discovery_details;
            ReviewOutcome::invalid(findings(details, &problems))
        }
        Ok(Err(error)) => unchecked(handler, &error.to_string()),
        Err(_) => unchecked(handler, "too many other Configurations wait for it"),
    }
}

fn unchecked(handler: &DiscoveryHandler, why: &str) -> ReviewOutcome {
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
    let line = document.filter(|_| details.contains('\n')).and_then(|document| document.line(&problem.path));
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

    /// A handler, as the component of a DiscoveryHandler of the cluster.
    fn guest() -> (Components, Client) {
        let components = no_components();
        let validate = |call: Call| {
            let problem = Problem { path: "/word".into(), reason: "Unknown".into(), message: "no such word".into() };
            let answer = match call.details.as_str() {
                "invalid" => Err(RoundError::InvalidDetails(vec![problem])),
                "late" => Err(RoundError::DeadlineExceeded(call.limits.round)),
                "trap" => Err(RoundError::Trapped("unreachable".to_owned())),
                _ => Ok(Vec::new()),
            };
            std::future::ready(answer).boxed()
        };
        let handler = LoadedHandler { name: "guest".to_owned(), validate: Arc::new(validate) };
        components.loaded().insert("guest.wasm".to_owned(), Loaded { version: (None, 0), handler: Some(handler) });
        let (client, _) = api(|_, _, _| {
            let handler =
                |name: &str, file: &str| json!({"metadata": {"name": name}, "spec": {"component": {"file": file}}});
            let items = [handler("other", "other.wasm"), handler("guest", "guest.wasm")];
            (200, json!({"kind": "DiscoveryHandlerList", "apiVersion": "akri.sh/v0", "metadata": {}, "items": items}))
        });
        (components, client)
    }

    fn naming(handler: &str, details: &str) -> Configuration {
        let handler = json!({"name": handler, "discoveryDetails": details});
        serde_json::from_value(json!({"metadata": {"name": "cam"}, "spec": {"discoveryHandler": handler}})).unwrap()
    }

    #[tokio::test] // rule 63
    async fn component_checks_details_and_may_fail_to_answer() {
        let (components, client) = guest();
        let check = async |details: &str| components.check_details(&client, &naming("guest", details)).await;
        assert_eq!(check("devices").await, ReviewOutcome::default());
        let refused = check("invalid").await;
        assert_eq!(refused.invalid, [Finding::new(format!("{FIELD}.word"), "no such word")]);
        for (details, why) in [("late", "did not finish within 1s"), ("trap", "the handler trapped")] {
            let outcome = check(details).await;
            assert!(outcome.is_allowed() && outcome.warnings[0].contains(why), "{details}: {outcome:?}");
        }
        assert_eq!(check("devices").await, ReviewOutcome::default(), "it is asked again");
        assert_eq!(components.check_details(&client, &naming("remote", "x")).await, ReviewOutcome::default());
    }

    #[tokio::test]
    async fn component_without_an_object_checks_nothing() {
        let (components, _) = guest();
        let (client, _) = api(|_, _, _| {
            (200, json!({"kind": "DiscoveryHandlerList", "apiVersion": "akri.sh/v0", "metadata": {}, "items": []}))
        });
        let outcome = components.check_details(&client, &naming("guest", "invalid")).await;
        assert_eq!(outcome, ReviewOutcome::default());
        components.refresh().await; // there is no such file
        assert!(components.by_name("guest").is_empty());
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
