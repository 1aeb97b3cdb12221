//! Akri on a cluster, as a user installs it: the chart, rendered by helm and applied by kubectl.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use akri_api::Configuration;
use akri_api::configuration::ConfigurationSpec;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, DeleteParams, ListParams, LogParams, PostParams};
use kube::{Client, ResourceExt as _};

use super::programs;
use super::story::{Story, wait_for};
use crate::skip::skip;

/// The namespace of the installation.
pub const NAMESPACE: &str = "akri-system";

/// The grace period of pods.
const GRACE: Duration = Duration::from_secs(5);

/// Akri on a cluster. It goes with this, since the Configurations of other stories are none of its business.
pub struct Installation<'a> {
    story: &'a Story,
    manifests: String,
    /// The time at which the first object was applied.
    pub since: Instant,
}

impl<'a> Installation<'a> {
    /// Installs the chart with these values (`name=value`), and the image that was just built, and waits until everything runs.
    /// None, with the reason, without helm.
    pub async fn new(story: &'a Story, values: &[&str]) -> Option<Self> {
        let mut installation = Self::prepare(story, values).await?;
        installation.since = Instant::now();
        let crds = chart().join("crds/crds.yaml");
        installation.kubectl(&["apply", "--validate=false", "--filename", crds.to_str().unwrap()], "");
        installation.kubectl(&["wait", "--for=condition=established", "customresourcedefinitions", "--all"], "");
        installation.kubectl(&["apply", "--validate=false", "--filename=-"], &installation.manifests);
        installation.wait_until_ready().await;
        if installation.manifests.contains("kind: ValidatingWebhookConfiguration") {
            installation.wait_for_webhook().await;
        }
        Some(installation)
    }

    /// Prepares the cluster for an installation that somebody else makes, and which goes with this.
    pub async fn prepare(story: &'a Story, values: &[&str]) -> Option<Self> {
        let manifests = render(&[&["createNamespace=true", "crds.upgrade=false"], values].concat())?;
        story.cluster().load_akri().unwrap();
        let installation = Self { story, manifests, since: Instant::now() };
        installation.wait_until_gone().await; // what a story that failed has left may be about to go
        Some(installation)
    }

    /// Runs kubectl as the administrator. Returns what it prints.
    ///
    /// # Panics
    /// If it fails.
    pub fn kubectl(&self, arguments: &[&str], input: &str) -> String {
        let output = self.try_kubectl(arguments, input);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "kubectl {}: {errors}", arguments.join(" "));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs kubectl, and returns its output whether it succeeds or not.
    pub fn try_kubectl(&self, arguments: &[&str], input: &str) -> Output {
        let mut command = Command::new(program("kubectl").unwrap());
        command.arg("--kubeconfig").arg(self.story.kubeconfig()).args(arguments);
        run(&mut command, input)
    }

    async fn wait_until_ready(&self) {
        let agents: Api<DaemonSet> = Api::namespaced(self.story.client(), NAMESPACE);
        let ready = async || agents.get("akri-agent").await.unwrap().status.map(|status| status.number_ready);
        wait_for("two agents", ready, |ready| *ready == Some(2)).await;
        let deployments: Api<Deployment> = Api::namespaced(self.story.client(), NAMESPACE);
        for name in ["akri-controller", "akri-webhook"] {
            let missing = async || {
                let Some(deployment) = deployments.get_opt(name).await.unwrap() else { return 0 };
                let ready = deployment.status.and_then(|status| status.ready_replicas).unwrap_or_default();
                deployment.spec.replicas.unwrap_or(1) - ready
            };
            wait_for(name, missing, |missing| *missing == 0).await;
        }
    }

    /// Waits until the webhook answers: without an answer Configurations are refused.
    async fn wait_for_webhook(&self) {
        let api: Api<Configuration> = Api::namespaced(self.story.client(), "default");
        let mut configuration = Configuration::new("webhook", ConfigurationSpec::default());
        configuration.spec.capacity = 1;
        configuration.spec.discovery_handler.name = "none".to_owned();
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        let answer = async || api.create(&dry_run, &configuration).await.map(drop).map_err(|error| error.to_string());
        wait_for("a webhook that answers", answer, Result::is_ok).await.unwrap();
    }

    /// Returns the differences between the manifests and the cluster, as GitOps tools see them.
    pub fn differences(&self) -> String {
        let output = self.try_kubectl(&["diff", "--filename=-"], &self.manifests);
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat()
    }

    /// Uninstalls it as a user does, and waits until it is gone.
    pub async fn uninstall(&self) {
        self.kubectl(&["delete", "--ignore-not-found", "--wait=false", "--filename=-"], &self.manifests);
        self.wait_until_gone().await;
    }

    /// Ends the story's installation.
    pub async fn end(self) {
        self.uninstall().await;
    }

    /// Pods that have ended can stay listed for a minute, and what deletes their namespace looks ever more seldom.
    async fn wait_until_gone(&self) {
        let namespaces: Api<Namespace> = Api::all(self.story.client());
        let pods: Api<Pod> = Api::namespaced(self.story.client(), NAMESPACE);
        let start = Instant::now();
        let found = async || {
            let found = namespaces.get_opt(NAMESPACE).await.unwrap();
            if found.is_some() && start.elapsed() > GRACE {
                let now = DeleteParams::default().grace_period(0);
                let _ = pods.delete_collection(&now, &ListParams::default()).await; // they may be gone by now
            }
            found
        };
        wait_for("no namespace", found, Option::is_none).await;
    }

    /// Returns the output of its pods.
    pub async fn logs(&self) -> String {
        logs(self.story.client()).await.unwrap()
    }
}

impl Drop for Installation<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.story.ask("no logs", async |client| {
                eprintln!("{}", logs(client).await?);
                Ok(())
            });
        }
        // Without its pods a webhook that must not be passed would stop all other stories.
        let _ = self.try_kubectl(&["delete", "--ignore-not-found", "--wait=false", "--filename=-"], &self.manifests);
    }
}

async fn logs(client: Client) -> kube::Result<String> {
    let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
    let mut logs = String::new();
    for pod in pods.list(&ListParams::default()).await? {
        let name = pod.name_any();
        let log = pods.logs(&name, &LogParams::default()).await;
        logs += &format!("{name}:\n{}\n", log.unwrap_or_else(|error| error.to_string()));
    }
    Ok(logs)
}

/// The chart with some values, as manifests for the cluster of the tests. None, with the reason, without helm.
pub fn render(values: &[&str]) -> Option<String> {
    let output = helm(&[&["--kube-version", &*programs::current().to_string()], &*sets(values)].concat())?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}

/// `helm template` with further arguments. None, with the reason, without helm.
pub fn helm(arguments: &[&str]) -> Option<Output> {
    let Some(helm) = program("helm") else {
        skip("helm is not there: run 'make peers'");
        return None;
    };
    let mut command = Command::new(helm);
    command.args(["template", "akri"]).arg(chart()).args(["--namespace", NAMESPACE]).args(arguments);
    Some(run(&mut command, ""))
}

fn sets<'a>(values: &[&'a str]) -> Vec<&'a str> {
    values.iter().flat_map(|value| ["--set", *value]).collect()
}

fn chart() -> PathBuf {
    root().join("deploy/helm/akri")
}

/// Returns kubectl or helm, if it is there.
pub fn program(name: &str) -> Option<PathBuf> {
    let peer = || Some(root().join("target/peers/kubernetes").join(name)).filter(|path| path.exists());
    programs::of_release(name).or_else(peer)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn run(command: &mut Command, input: &str) -> Output {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let writer = std::thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}
