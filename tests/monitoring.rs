//! Metrics, Events and reasons: all are documented, the chart's alerts fire when they should, and its dashboard shows something.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use akri_agent::metrics::Metrics;
use akri_kube::metrics::{MetricDoc, common_docs};
use akri_model::events::is_normal;
use serde_json::Value;

use crate::reference::pages;
use crate::support::kubelet::Kubelet;
use crate::support::node::{Node, wait_for};
use crate::support::prometheus::{Prometheus, Target, is_installed, promtool};

/// Files with reasons that users meet in conditions, Events and notes.
const WITH_REASONS: [&str; 28] = [
    "handlers/mdns/src/browser.rs",
    "handlers/onvif/src/component.rs",
    "handlers/onvif/src/survey.rs",
    "handlers/opcua/src/network.rs",
    "handlers/opcua/src/report.rs",
    "handlers/udev/src/component.rs",
    "host/agent/src/broker_info/reporter.rs",
    "host/agent/src/handler_reports.rs",
    "host/agent/src/owner/devices.rs",
    "host/agent/src/owner/effects.rs",
    "host/agent/src/owner/mod.rs",
    "host/agent/src/owner/requests.rs",
    "host/brokers/src/report.rs",
    "host/controller/src/reconcile/instance.rs",
    "host/controller/src/status.rs",
    "host/discovery/src/component_file.rs",
    "host/discovery/src/images.rs",
    "host/discovery/src/loader.rs",
    "host/discovery/src/registry.rs",
    "host/model/src/chain.rs",
    "host/model/src/configuration_status.rs",
    "host/model/src/discover_on.rs",
    "host/model/src/events.rs",
    "host/model/src/left_out.rs",
    "host/model/src/secret_scanner.rs",
    "host/model/src/summary.rs",
    "host/node/src/admission.rs",
    "host/node/src/container_paths.rs",
];

/// Words in these files that are no reasons: types and values of conditions, kinds, messages of protocols.
const NO_REASONS: &str = "Apply BrokersReady Bye Configuration DetailsValid DiscoveryComplete False Handler HandlerAvailable Hello \
                          Instance Online PropertiesResolved Ready True Unknown UsageKnown";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The metrics of each program, and those that all have.
pub fn documented() -> [(&'static str, Vec<MetricDoc>); 4] {
    [
        ("metrics of the agent", Metrics::default().set.docs().to_vec()),
        ("metrics of the controller", akri_controller::metric_docs()),
        ("metrics of the webhook", akri_webhook::metric_docs()),
        ("metrics of all", common_docs()),
    ]
}

fn all_metrics() -> BTreeMap<String, MetricDoc> {
    let all = documented().into_iter().flat_map(|(_, docs)| docs);
    all.map(|doc| (doc.name.clone(), doc)).collect()
}

/// Returns the words of a source text that look like reasons, without its tests and comments.
fn words(source: &str) -> BTreeSet<String> {
    let product = source.split("#[cfg(test)]\nmod tests").next().unwrap();
    let lines = product.lines().filter(|line| !line.trim_start().starts_with("//"));
    let is_word = |word: &&str| {
        word.starts_with(|c: char| c.is_ascii_uppercase())
            && word.chars().nth(1).is_some_and(|c| c.is_ascii_lowercase())
            && word.chars().all(|c| c.is_ascii_alphanumeric())
    };
    let literals = lines.flat_map(|line| line.split('"').skip(1).step_by(2)).filter(is_word);
    literals.map(str::to_owned).collect()
}

/// The rows of the tables between two comments, with the reasons that each is about.
fn explained(name: &str) -> Vec<(Vec<String>, String)> {
    let begin = format!("<!-- {name} -->");
    let page = pages().into_iter().find(|(_, text)| text.contains(&begin)).unwrap_or_else(|| panic!("no '{begin}'"));
    let (_, rest) = page.1.split_once(&begin).unwrap();
    let rows = rest.split("<!-- end -->").next().unwrap().lines().filter(|line| line.starts_with("| `"));
    let reasons =
        |row: &str| row.split(" | ").next().unwrap().split('`').skip(1).step_by(2).map(str::to_owned).collect();
    rows.map(|row| (reasons(row), row.to_owned())).collect()
}

#[test]
fn each_reason_is_explained_once() {
    let no_reasons: BTreeSet<&str> = NO_REASONS.split_whitespace().collect();
    let found: BTreeSet<String> = WITH_REASONS.iter().flat_map(|file| words(&read(file))).collect();
    for word in &no_reasons {
        assert!(found.contains(*word), "'{word}' is in none of the files");
    }
    let reasons: BTreeSet<String> = found.into_iter().filter(|word| !no_reasons.contains(&**word)).collect();
    assert!(reasons.len() > 90, "{reasons:?}");
    let mut all = BTreeSet::new();
    for name in ["reasons", "events"] {
        let rows = explained(name);
        let listed: Vec<&String> = rows.iter().flat_map(|(reasons, _)| reasons).collect();
        let unique: BTreeSet<&String> = listed.iter().copied().collect();
        assert_eq!(unique.len(), listed.len(), "one of the {name} is explained twice: {listed:?}");
        all.extend(unique.into_iter().cloned());
        for (reasons, row) in rows.iter().filter(|_| name == "events") {
            let kind = if reasons.iter().any(|reason| is_normal(reason)) { " | Normal, " } else { " | Warning, " };
            assert!(row.contains(kind), "{row}");
        }
    }
    let missing: Vec<_> = reasons.difference(&all).collect();
    assert!(missing.is_empty(), "nothing explains {missing:?}");
    let unknown: Vec<_> = all.difference(&reasons).collect();
    assert!(unknown.is_empty(), "nothing has the reasons {unknown:?}");
}

/// The expressions of the dashboard, by panel.
fn dashboard() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(&read("deploy/helm/akri/files/dashboard.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let expressions = panels.flat_map(|panel| {
        let title = panel["title"].as_str().unwrap();
        let targets = panel["targets"].as_array().unwrap().iter();
        targets.map(move |target| (title.to_owned(), target["expr"].as_str().unwrap().to_owned()))
    });
    expressions.collect()
}

/// The expressions of the alert rules, by name.
fn alerts() -> Vec<(String, String)> {
    let rules: Value = serde_saphyr::from_str(&read("deploy/helm/akri/files/rules.yaml")).unwrap();
    let groups = rules["groups"].as_array().unwrap().iter();
    let all = groups.flat_map(|group| group["rules"].as_array().unwrap());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    all.map(|rule| (text(&rule["alert"]), text(&rule["expr"]))).collect()
}

/// Returns the metrics that an expression names, without the suffixes of histograms.
fn named(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let metrics = words.filter(|word| word.starts_with("akri_") || word.starts_with("process_"));
    metrics.map(|word| word.strip_suffix("_bucket").unwrap_or(word).to_owned()).collect()
}

#[test]
fn expressions_name_metrics_that_exist() {
    let metrics = all_metrics();
    for (place, expression) in dashboard().into_iter().chain(alerts()) {
        for name in named(&expression) {
            assert!(metrics.contains_key(&name), "{place}: there is no metric '{name}'");
        }
    }
    let panels: BTreeSet<i64> = {
        let dashboard: Value = serde_json::from_str(&read("deploy/helm/akri/files/dashboard.json")).unwrap();
        dashboard["panels"].as_array().unwrap().iter().map(|panel| panel["id"].as_i64().unwrap()).collect()
    };
    assert!(panels.len() > 15, "ids are unique");
}

/// The file of promtool's tests has each alert, and a test in which all is well.
#[test]
fn alerts_fire_when_they_should_and_only_then() {
    if !is_installed() {
        return;
    }
    let tests = read("tests/monitoring_rules.yaml");
    for (alert, expression) in alerts() {
        assert!(tests.contains(&format!("{{alertname=\"{alert}\"")), "no test lets {alert} fire");
        let well = tests.split("- name: ").nth(1).unwrap();
        for metric in named(&expression) {
            assert!(well.contains(&metric), "{alert}: the first test has no {metric}");
        }
    }
    for arguments in
        [["check", "rules", "../deploy/helm/akri/files/rules.yaml"], ["test", "rules", "monitoring_rules.yaml"]]
    {
        let output = promtool(&root().join("tests"), &arguments);
        let printed = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        assert!(output.status.success(), "{arguments:?}: {printed}");
    }
}

/// Checks that all metrics that a Prometheus has scraped are documented with their labels.
pub fn assert_scraped_are_documented(prometheus: &Prometheus) {
    let metrics = all_metrics();
    let series = prometheus.query(r#"{__name__=~"(akri|process)_.+"}"#).unwrap();
    assert!(series.len() > 50, "{series:?}");
    for labels in series.iter().map(|series| series["metric"].as_object().unwrap()) {
        let name = labels["__name__"].as_str().unwrap();
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
        let doc =
            metrics.get(name).or_else(|| metrics.get(base?)).unwrap_or_else(|| panic!("{name} is not documented"));
        let of_target = |label: &str| ["__name__", "instance", "job", "le", "pod"].contains(&label);
        // The target has a namespace, too, which counts where the metric has none.
        let is_of_target = |label: &&str| of_target(label) || *label == "namespace" && !doc.labels.contains(label);
        let own: BTreeSet<&str> = labels.keys().map(String::as_str).filter(|label| !is_of_target(label)).collect();
        assert_eq!(own, doc.labels.iter().copied().collect(), "{name}");
    }
}

/// Waits until each expression of the dashboard that names only these metrics shows something, and checks that Prometheus
/// understands all others, and those of the alerts.
pub async fn wait_for_dashboard(prometheus: &Prometheus, metrics: &BTreeSet<String>) {
    wait_for(
        "targets",
        || prometheus.query("up"),
        |up| up.as_ref().is_ok_and(|up| !up.is_empty() && up.iter().all(|up| up["value"][1] == "1")),
    )
    .await
    .unwrap();
    for (panel, expression) in dashboard() {
        let shows = |found: &Result<Vec<Value>, String>| found.as_ref().is_ok_and(|series| !series.is_empty());
        if named(&expression).is_subset(metrics) {
            wait_for(&format!("{panel}: {expression}"), || prometheus.query(&expression), shows).await.unwrap();
        } else {
            prometheus.query(&expression).unwrap_or_else(|error| panic!("{panel}: {error}"));
        }
    }
    for (alert, expression) in alerts() {
        prometheus.query(&expression).unwrap_or_else(|error| panic!("{alert}: {error}"));
    }
}

/// Returns the names of all metrics.
pub fn all_names() -> BTreeSet<String> {
    all_metrics().into_keys().collect()
}

#[tokio::test]
async fn dashboard_shows_a_local_agent() {
    if !is_installed() {
        return;
    }
    let node = Node::new();
    let kubelet = Kubelet::start(&node.path("kubelet"));
    node.write_echo("cam", 1, &["one"]);
    node.write_configuration("bad", "udev", "      udevRule: []\n", "");
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let _agent = node.start_with(&["--listen", &address]);
    kubelet.wait_for("the camera", |view| view.resource("akri.sh/cam").allocatable() == 1).await;
    kubelet.admit("pod", "container", "akri.sh/cam", 1).await.unwrap();
    let prometheus = Prometheus::start(&[Target { address, scheme: "http", pod: "akri-agent-x".to_owned() }], &[]);
    let of_server = |name: &String| name.starts_with("akri_api_");
    let [agent, _, _, common] =
        documented().map(|(_, docs)| docs.into_iter().map(|doc| doc.name).collect::<BTreeSet<_>>());
    let metrics = agent.union(&common).filter(|name| !of_server(name)).cloned().collect();
    wait_for_dashboard(&prometheus, &metrics).await;
    assert_scraped_are_documented(&prometheus);
    let not_ready = prometheus.query("akri_configuration_ready == 0").unwrap();
    assert_eq!(not_ready.len(), 1, "{not_ready:?}");
    assert_eq!(not_ready[0]["metric"]["namespace"], "default", "that of the Configuration");
}
