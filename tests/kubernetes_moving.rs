//! A release of upstream Akri becomes one of ours by the commands of docs/how-to/upgrade.md, and goes back: nothing is made anew (rule 65, rule
//! 118). A small chart stands in for upstream's, unless UPSTREAM=DIR names a checkout with the real one, and the story leaves objects as
//! upstream's agents and controller do.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use akri_api::{Configuration, Instance};
use akri_model::names::{HashInput, HashLength};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::support::cluster::{program, wait_for};
use crate::support::cluster_fixture::ClusterFixture;
use crate::support::node::{akri, built_components, usage};
use crate::upstream;

const NODES: [&str; 2] = ["node-a", "node-b"];

/// The values of the story's upgrade: the fixture runs agents and controller, and other stories have objects without namespaces.
const AS_THE_FIXTURE_RUNS: &str = "image.repository=localhost/akri,agent.enabled=false,controller.enabled=false,webhookConfiguration.enabled=false,rbac.enabled=false";

/// Upstream's chart as far as it matters here: Configurations with brokers and Services, an agent, a controller, a webhook, and the hook
/// that deletes Configurations.
const TEMPLATES: &str = include_str!("support/upstream_chart.yaml");

/// The fields of upstream's kinds. Its schemas prune all others.
const FIELDS: [(&str, &[&str]); 2] = [
    (
        "configurations.akri.sh",
        &[
            "brokerProperties",
            "brokerSpec",
            "capacity",
            "configurationServiceSpec",
            "discoveryHandler",
            "instanceServiceSpec",
        ],
    ),
    (
        "instances.akri.sh",
        &["brokerProperties", "capacity", "cdiName", "configurationName", "deviceUsage", "nodes", "shared"],
    ),
];

/// Returns upstream's kinds: those of the checkout, or ours without the fields that are new.
fn kinds() -> String {
    if let Some(checkout) = upstream::checkout() {
        let read = |kind: &str| {
            fs::read_to_string(checkout.join(format!("deployment/helm/crds/akri-{kind}-crd.yaml"))).unwrap()
        };
        return ["configuration", "instance"].map(read).join("\n---\n");
    }
    let ours: Vec<Value> = serde_saphyr::from_multiple(include_str!("../deploy/crds.yaml")).unwrap();
    let mut kinds = Vec::new();
    for (name, fields) in FIELDS {
        let mut kind = ours.iter().find(|kind| kind["metadata"]["name"] == name).unwrap().clone();
        let version = kind["spec"]["versions"][0].as_object_mut().unwrap();
        version.remove("subresources");
        let properties = &mut version["schema"]["openAPIV3Schema"]["properties"];
        properties.as_object_mut().unwrap().remove("status");
        properties["spec"]["properties"].as_object_mut().unwrap().retain(|field, _| fields.contains(&&**field));
        kinds.push(kind.to_string());
    }
    kinds.join("\n---\n")
}

/// The name of the Configuration with a Job.
fn firmware(cluster: &ClusterFixture) -> String {
    format!("{}-firmware", cluster.name())
}

/// A release of upstream's chart, and where its files are.
struct Release {
    namespace: String,
    kubeconfig: PathBuf,
    directory: tempfile::TempDir,
}

impl Release {
    fn install(cluster: &ClusterFixture) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (namespace, kubeconfig) = (cluster.story.namespace().to_owned(), cluster.story.kubeconfig());
        let release = Self { namespace, kubeconfig, directory };
        fs::write(release.directory.path().join("kinds.yaml"), kinds()).unwrap();
        release.run("kubectl apply --server-side --force-conflicts -f WORK/kinds.yaml");
        if upstream::checkout().is_none() {
            let chart = release.chart();
            fs::create_dir_all(chart.join("templates")).unwrap();
            fs::write(chart.join("Chart.yaml"), "apiVersion: v2\nname: akri\nversion: 0.13.26\n").unwrap();
            fs::write(chart.join("templates/akri.yaml"), TEMPLATES).unwrap();
        }
        // Nothing runs the job that makes the certificate of upstream's webhook.
        let values = json!({
            "webhookConfiguration": {"enabled": false},
            "debugEcho": {
                "discovery": {"enabled": true},
                "configuration": {
                    "enabled": true, "name": cluster.name(), "discoveryDetails": {"descriptions": ["one"]},
                    "capacity": 2, "brokerPod": {"image": {"repository": "broker"}},
                },
            },
            "custom": {"configuration": {
                "enabled": true, "name": firmware(cluster), "discoveryHandlerName": "debugEcho", "capacity": 2,
                "discoveryDetails": "descriptions: [ended, runs, moved]",
                "brokerJob": {"image": {"repository": "update"}},
            }},
        });
        fs::write(release.directory.path().join("users.yaml"), values.to_string()).unwrap();
        release.run("helm install akri CHART --namespace default --values WORK/users.yaml");
        release
    }

    /// Upstream's chart of the checkout, or the stand-in.
    fn chart(&self) -> PathBuf {
        let of_upstream = upstream::checkout().map(|checkout| checkout.join("deployment/helm"));
        of_upstream.unwrap_or_else(|| self.directory.path().join("chart"))
    }

    /// Runs commands of the page as they stand there, but for names of what only the user has. Returns what they print.
    fn run(&self, commands: &str) -> String {
        let work = self.directory.path().to_str().unwrap().to_owned();
        let commands = commands
            .replace("--namespace default", &format!("--namespace {}", self.namespace))
            .replace("delete akrii --all --all-namespaces", "delete akrii --all --namespace NAMESPACE")
            .replace("NAMESPACE", &self.namespace)
            .replace("image.repository=REGISTRY/akri", AS_THE_FIXTURE_RUNS)
            .replace("akri-helm-charts/akri --version VERSION", "CHART")
            .replace("CHART", self.chart().to_str().unwrap())
            .replace("WORK", &work)
            .replace("values.yaml", &format!("{work}/values.yaml"));
        let path = |name: &str| program(name).unwrap().parent().unwrap().to_str().unwrap().to_owned();
        let paths = [path("helm"), path("kubectl"), "/usr/bin".to_owned(), "/bin".to_owned()].join(":");
        let mut shell = Command::new("/bin/sh");
        shell.args(["-ec", &commands]).env("PATH", paths).env("KUBECONFIG", &self.kubeconfig);
        shell.env("HOME", self.directory.path()).current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
        let output = shell.output().unwrap();
        let printed = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned()).concat();
        assert!(output.status.success(), "{commands}\n{printed}");
        printed
    }

    /// Runs `akri upgrade check` on the cluster. Returns whether nothing of this story is in the way, and the findings.
    fn check(&self) -> (bool, String) {
        let mut command = Command::new(akri());
        command.args(["upgrade", "check", "--components"]).arg(built_components());
        let output = command.env("KUBECONFIG", &self.kubeconfig).output().unwrap();
        let findings = String::from_utf8(output.stdout).unwrap();
        let blocking: Vec<&str> = findings.lines().filter(|line| line.starts_with("in the way")).collect();
        assert_eq!(output.status.success(), blocking.is_empty(), "{findings}");
        // Namespaces of other stories take their time to end.
        (blocking.iter().all(|line| !line.contains(&self.namespace)), findings)
    }
}

/// The commands below a heading of the page.
fn commands(heading: &str) -> String {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/how-to/upgrade.md")).unwrap();
    let section = page.split(&format!("## {heading}\n")).nth(1).unwrap();
    section.split("```sh no-run: run by kubernetes_moving\n").nth(1).unwrap().split("```").next().unwrap().to_owned()
}

/// Applies a part of an Instance as one of upstream's field managers, none of which forces anything.
async fn apply(cluster: &ClusterFixture, manager: &str, name: &str, metadata: Value, spec: Value) -> Instance {
    let mut object = json!({"apiVersion": "akri.sh/v0", "kind": "Instance", "metadata": metadata});
    object["metadata"]["name"] = json!(name);
    if !spec.is_null() {
        object["spec"] = spec;
    }
    cluster.instances().patch(name, &PatchParams::apply(manager), &Patch::Apply(object)).await.unwrap()
}

async fn create<K>(cluster: &ClusterFixture, object: Value) -> K
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Serialize + DeserializeOwned + Clone + Debug,
{
    let object: K = serde_json::from_value(object).unwrap();
    cluster.story.api::<K>().create(&PostParams::default(), &object).await.unwrap()
}

fn owner(kind: &str, name: &str, uid: Option<String>) -> Value {
    json!([{"apiVersion": "akri.sh/v0", "kind": kind, "name": name, "uid": uid, "controller": true, "blockOwnerDeletion": true}])
}

/// The Instance of a shared device: spec, finalizers and slots each by a manager of their own, without identity and labels, and with keys
/// of used slots only. Upstream may have made the id of the device otherwise.
async fn leave_instance(
    cluster: &ClusterFixture,
    configuration: &str,
    (id, device): (&str, &str),
    used: &[(usize, &str)],
) -> Instance {
    let hash = HashInput::new(id, true, "").hash(HashLength::Short);
    let name = format!("{configuration}-{hash}");
    let of = owner("Configuration", configuration, cluster.configurations().get(configuration).await.unwrap().uid());
    for node in NODES {
        let spec = json!({
            "configurationName": configuration, "cdiName": format!("akri.sh/{configuration}={hash}"), "capacity": 2,
            "shared": true, "nodes": [node], "brokerProperties": {"DEBUG_ECHO_DESCRIPTION": device},
        });
        apply(cluster, node, &name, json!({"ownerReferences": of}), spec).await;
        apply(cluster, &format!("{node}-fin"), &name, json!({"finalizers": [node]}), Value::Null).await;
    }
    for (slot, node) in used {
        let slots: BTreeMap<String, &str> = [(format!("{name}-{slot}"), *node)].into();
        apply(cluster, &format!("dp-{node}"), &name, json!({}), json!({"deviceUsage": slots})).await;
    }
    cluster.instances().get(&name).await.unwrap()
}

/// A broker Pod that runs on a node.
async fn leave_pod(cluster: &ClusterFixture, instance: &Instance, node: &str) {
    let (of, configuration) = (instance.name_any(), &instance.spec.configuration_name);
    let name = format!("{node}-{of}-pod");
    let labels = json!({
        "app": name, "controller": "akri.sh", "akri.sh/configuration": configuration, "akri.sh/instance": of,
        "akri.sh/target-node": node,
    });
    let here = json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]);
    let affinity =
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": here}}});
    let resource = |(memory, cpu)| json!({format!("akri.sh/{of}"): "1", "memory": memory, "cpu": cpu});
    let container = json!({
        "name": format!("{configuration}-broker"), "image": "broker:latest",
        "resources": {"limits": resource(("30Mi", "29m")), "requests": resource(("10Mi", "10m"))},
    });
    let metadata = json!({"name": name, "labels": labels, "ownerReferences": owner("Instance", &of, instance.uid())});
    let spec = json!({"containers": [container], "affinity": affinity, "terminationGracePeriodSeconds": 0});
    create::<Pod>(cluster, json!({"metadata": metadata, "spec": spec})).await;
    let ready = json!([{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    let running = Patch::Strategic(json!({"status": {"phase": "Running", "conditions": ready}}));
    cluster.story.api::<Pod>().patch_status(&name, &PatchParams::default(), &running).await.unwrap();
}

async fn leave_service(cluster: &ClusterFixture, kind: &str, of: &str, uid: Option<String>) {
    let name = format!("{of}-svc");
    let label = format!("akri.sh/{}", kind.to_lowercase());
    let labels = json!({"app": name, "controller": "akri.sh", label.clone(): of});
    let port = format!("akri-debug-echo-foo-{}-service", kind.to_lowercase());
    let ports = json!([{"name": port, "port": 6052, "protocol": "TCP", "targetPort": 6052}]);
    let spec = json!({"type": "ClusterIP", "ports": ports, "selector": {"controller": "akri.sh", label: of}});
    let metadata = json!({"name": name, "labels": labels, "ownerReferences": owner(kind, of, uid)});
    create::<Service>(cluster, json!({"metadata": metadata, "spec": spec})).await;
}

/// A Job that has not ended. Of one that has ended and was removed by its TTL, nothing is left.
async fn leave_job(cluster: &ClusterFixture, instance: &Instance) {
    let (of, configuration) = (instance.name_any(), &instance.spec.configuration_name);
    let labels = json!({"akri.sh/configuration": configuration, "akri.sh/instance": of});
    let container = json!({"name": format!("{configuration}-broker"), "image": "update:latest"});
    let template =
        json!({"metadata": {"labels": labels}, "spec": {"restartPolicy": "OnFailure", "containers": [container]}});
    let name = format!("{of}-1-job");
    let mut of_job = labels.clone();
    of_job["controller"] = json!("akri.sh");
    let metadata = json!({"name": name, "labels": of_job, "ownerReferences": owner("Instance", &of, instance.uid())});
    create::<Job>(cluster, json!({"metadata": metadata, "spec": {"template": template}})).await;
}

/// Everything that must not be made anew: kind and name, with UID and address.
async fn identities(cluster: &ClusterFixture) -> BTreeMap<String, String> {
    async fn list<K>(
        cluster: &ClusterFixture,
        kind: &str,
        found: &mut BTreeMap<String, String>,
        more: impl Fn(&K) -> String,
    ) where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + DeserializeOwned + Clone + Debug,
    {
        for object in cluster.story.api::<K>().list(&ListParams::default()).await.unwrap() {
            let is_brokers = kind != "Pod" || object.name_any().ends_with("-pod");
            let uid = object.uid().unwrap_or_default();
            found.extend(
                is_brokers.then(|| (format!("{kind} {}", object.name_any()), format!("{uid} {}", more(&object)))),
            );
        }
    }
    let mut found = BTreeMap::new();
    list::<Configuration>(cluster, "Configuration", &mut found, |_| String::new()).await;
    list::<Instance>(cluster, "Instance", &mut found, |_| String::new()).await;
    list::<Pod>(cluster, "Pod", &mut found, |_| String::new()).await;
    list::<Job>(cluster, "Job", &mut found, |_| String::new()).await;
    list::<Service>(cluster, "Service", &mut found, |service| {
        service.spec.as_ref().and_then(|spec| spec.cluster_ip.clone()).unwrap_or_default()
    })
    .await;
    found
}

#[tokio::test] // rule 65, rule 118
async fn release_of_upstream_becomes_ours_and_nothing_is_made_anew() {
    if program("helm").is_none() {
        return crate::support::skip::skip("helm is not there: run 'make peers'");
    }
    let Some(mut cluster) = ClusterFixture::begin("moving").await else { return };
    cluster.stop_controller();
    let (name, updated) = (cluster.name().to_owned(), firmware(&cluster));
    let release = Release::install(&cluster);
    let camera = leave_instance(&cluster, &name, ("one", "one"), &[(0, "node-a"), (1, "node-b")]).await;
    let ended = leave_instance(&cluster, &updated, ("ended", "ended"), &[]).await;
    let runs = leave_instance(&cluster, &updated, ("runs", "runs"), &[]).await;
    let moved = leave_instance(&cluster, &updated, ("http://10.0.0.1/-moved", "moved"), &[]).await;
    for node in NODES {
        leave_pod(&cluster, &camera, node).await;
    }
    leave_service(&cluster, "Instance", &camera.name_any(), camera.uid()).await;
    leave_service(&cluster, "Configuration", &name, cluster.configurations().get(&name).await.unwrap().uid()).await;
    leave_job(&cluster, &runs).await;
    let before = identities(&cluster).await;
    assert_eq!(before.len(), 2 + 4 + 2 + 1 + 2, "{before:#?}");

    let (is_free, findings) = release.check();
    let of_release = format!("helm upgrade akri --namespace {}", cluster.story.namespace());
    assert!(!is_free && findings.contains("akri-agent-daemonset") && findings.contains(&of_release), "{findings}");
    release.run(&commands("The steps"));
    let (is_free, findings) = release.check();
    assert!(is_free && findings.contains("adopted with its 2 used slots"), "{findings}");
    assert_eq!(identities(&cluster).await, before);

    let long_delay: &[&str] = &["--reclaim-delay-seconds", "120"];
    cluster.start_controller();
    let agents = NODES.map(|node| cluster.add_with(node, cluster.story.kubeconfig(), long_delay));
    let is_ours = |all: &[Instance]| {
        let adopted = all.iter().filter(|instance| instance.annotations().contains_key("akri.sh/identity"));
        all.len() == 5 && adopted.count() == 4 && all.iter().all(|instance| instance.finalizers().is_empty())
    };
    let adopted = cluster.wait_for_instances("three adopted ones, and one of a device with another id", is_ours).await;
    let of = |left: &Instance| adopted.iter().find(|instance| instance.uid() == left.uid()).unwrap();
    assert_eq!(
        usage(of(&camera)),
        [(&*format!("{}-0", camera.name_any()), "node-a"), (&*format!("{}-1", camera.name_any()), "node-b")]
    );
    let is_new =
        |instance: &&Instance| [&camera, &ended, &runs, &moved].iter().all(|left| left.uid() != instance.uid());
    let new = adopted.iter().find(is_new).unwrap().name_any();
    let recorded = async || cluster.list().await;
    let has_run = |instance: &&Instance| {
        let record = instance.annotations().get("akri.sh/broker-job");
        record.is_some_and(|record| record.starts_with("created "))
    };
    wait_for("records of all four Jobs", recorded, |all| all.iter().filter(has_run).count() == 4).await;
    let marked = async || {
        let mut marked = Vec::new();
        for pod in cluster.story.api::<Pod>().list(&ListParams::default()).await.unwrap() {
            marked.push(pod.annotations().contains_key("akri.sh/broker-hash") || !pod.name_any().ends_with("-pod"));
        }
        for service in cluster.story.api::<Service>().list(&ListParams::default()).await.unwrap() {
            marked.push(service.annotations().contains_key("akri.sh/broker-hash"));
        }
        marked
    };
    wait_for("Pods and Services that are taken over", marked, |all| all.iter().all(|is_marked| *is_marked)).await;
    let mut after = identities(&cluster).await;
    assert!(after.remove(&format!("Instance {new}")).is_some());
    assert_eq!(after, before, "nothing is made anew but the Instance of the device with another id");
    let (is_free, findings) = release.check();
    assert!(is_free, "{findings}");
    // Back again: Configurations stay, and upstream's agents can make Instances and claim slots.
    cluster.stop_controller();
    for mut agent in agents {
        agent.stop();
    }
    release.run(&commands("And back"));
    let gone = async || cluster.list().await;
    wait_for("no Instances of ours", gone, Vec::is_empty).await;
    let configurations = |found: BTreeMap<String, String>| {
        found.into_iter().filter(|(kind, _)| kind.starts_with("Configuration ")).collect::<Vec<_>>()
    };
    assert_eq!(configurations(identities(&cluster).await), configurations(before));
    let camera = leave_instance(&cluster, &name, ("one", "one"), &[(0, "node-a"), (1, "node-b")]).await;
    assert_eq!((camera.spec.device_usage.len(), camera.finalizers().len()), (2, 2));
}
