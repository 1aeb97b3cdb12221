//! Upstream Akri's samples and the values of its chart, compared with the pages about them (rule 65). The samples are here in their essence;
//! UPSTREAM=DIR, a checkout of upstream's repository, has them in full, and its chart.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::support::cluster::{helm, program};
use crate::support::node::{Node, built_components};

/// Parts of the findings about brokers without placeholder and Services without ports.
const NO_PORTS: [&str; 3] =
    ["first container", "instanceServiceSpec.ports[0].port: 0", "configurationServiceSpec.ports[0].port: 0"];

/// The essence of each sample, and parts of what the check finds about it.
fn samples() -> Vec<(&'static str, Value, &'static [&'static str])> {
    let echo = json!({"name": "debugEcho", "discoveryDetails": "descriptions: [a]"});
    let udev =
        |rule: &str| json!({"name": "udev", "discoveryDetails": format!("udevRules: ['{rule}']\npermissions: rwm")});
    let container = json!({"name": "b", "image": "b", "resources": {"limits": {"{{PLACEHOLDER}}": "1"}}});
    let pod = json!({"brokerPodSpec": {"containers": [container]}});
    let job = json!({"brokerJobSpec": {"template": {"spec": {"containers": [container], "restartPolicy": "Never"}}}});
    let plain = json!({"brokerPodSpec": {"containers": [{"name": "b", "image": "b"}]}});
    let port = json!({"type": "ClusterIP", "ports": [{"name": "name", "port": 0, "targetPort": 0, "protocol": "TCP"}]});
    let nothing = "opcuaDiscoveryMethod: {standard: {}}\napplicationNames: {action: Include, items: []}";
    let services = |broker: Value| json!({"discoveryHandler": echo, "brokerSpec": broker, "instanceServiceSpec": port, "configurationServiceSpec": port});
    let with = |handler: Value, broker: &Value| json!({"discoveryHandler": handler, "brokerSpec": broker});
    vec![
        ("akri-debug-echo-pod-configuration", with(echo.clone(), &pod), &[]),
        ("akri-debug-echo-job-configuration", with(echo.clone(), &job), &[]),
        ("config-a", with(echo.clone(), &plain), &["first container"]),
        ("config-b", with(echo.clone(), &job), &[]),
        ("akri-udev-video-configuration", with(udev("KERNEL==\"video[0-9]*\""), &pod), &[]),
        ("akri-onvif-video-configuration", with(json!({"name": "onvif"}), &pod), &["identifyBy: UrlAndUuid"]),
        (
            "akri-opcua-configuration",
            with(json!({"name": "opcua", "discoveryDetails": nothing}), &pod),
            &["applicationNames", "identifyBy: ListedUrl"],
        ),
        ("udevDevNullConfiguration", json!({"discoveryHandler": udev("KERNEL==\"null\"")}), &[]),
        ("udevGroupedConfiguration", json!({"discoveryHandler": udev("ENV{ID_PATH}==\"pci-0\"")}), &[]),
        ("debugEchoConfiguration", with(echo.clone(), &pod), &[]),
        ("webhookValidConfiguration", services(pod.clone()), &NO_PORTS[1..]),
        ("webhookInvalidConfiguration", services(plain), &NO_PORTS),
    ]
}

/// The checkout of upstream's repository that AKRI_UPSTREAM names.
pub fn checkout() -> Option<PathBuf> {
    std::env::var_os("AKRI_UPSTREAM").filter(|named| !named.is_empty()).map(PathBuf::from)
}

fn page(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name)).unwrap()
}

/// Runs the check on a file, and returns what it finds.
fn findings(node: &Node, manifest: &str) -> Vec<String> {
    node.write("sample.yaml", manifest);
    let (file, components) = (node.path("sample.yaml"), built_components());
    let output = node.akri(&[
        "upgrade",
        "check",
        file.to_str().unwrap(),
        "--components",
        components.to_str().unwrap(),
        "-o",
        "json",
    ]);
    let found: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    found.iter().map(|finding| finding["message"].as_str().unwrap().to_owned()).collect()
}

#[test] // rule 65
fn samples_of_upstream_are_as_the_page_has_them() {
    let (node, page) = (Node::new(), page("how-to/upgrade.md"));
    let rows = page.split("## Upstream's samples").nth(1).unwrap();
    for (name, spec, expected) in samples() {
        assert!(rows.contains(name), "the page has no row for {name}");
        let object =
            json!({"apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": "cam"}, "spec": spec});
        let mut manifests = vec![object.to_string()];
        for directory in ["test/yaml", "test/e2e/yaml"] {
            let file = checkout().map(|checkout| checkout.join(directory).join(format!("{name}.yaml")));
            let text = file.and_then(|file| fs::read_to_string(file).ok());
            manifests.extend(text.map(|text| match name {
                "udevGroupedConfiguration" => text.replace("{{", "{").replace("}}", "}").replace("\"{}\"", "\"pci-0\""),
                _ => text,
            }));
        }
        assert_eq!(manifests.len(), 1 + usize::from(checkout().is_some()), "{name}");
        for manifest in manifests {
            let found = findings(&node, &manifest);
            let is_expected = |part: &&str| found.iter().filter(|message| message.contains(*part)).count() == 1;
            assert!(found.len() == expected.len() && expected.iter().all(is_expected), "{name}: {found:#?}");
        }
    }
}

/// The leaves of a value, by path.
fn leaves(value: &Value, path: &str, all: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            fields.iter().for_each(|(name, field)| leaves(field, &format!("{path}.{name}"), all));
        }
        Value::Array(items) if !items.is_empty() => {
            items.iter().enumerate().for_each(|(index, item)| leaves(item, &format!("{path}.{index}"), all));
        }
        leaf => drop(all.insert(path.trim_start_matches('.').to_owned(), leaf.clone())),
    }
}

fn all_leaves(value: &Value) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    leaves(value, "", &mut all);
    all
}

fn read(file: &Path) -> Value {
    serde_saphyr::from_str(&fs::read_to_string(file).unwrap()).unwrap()
}

fn is_empty(value: Option<&Value>) -> bool {
    value.is_none_or(|value| [json!(null), json!(""), json!({}), json!([])].contains(value))
}

/// Each default that differs from upstream's has a row in the table of the page.
#[test] // rule 65
fn defaults_that_differ_from_upstream_are_in_the_table() {
    let Some(checkout) = checkout() else { return };
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/helm/akri/values.yaml");
    let (theirs, ours) = (all_leaves(&read(&checkout.join("deployment/helm/values.yaml"))), all_leaves(&read(&ours)));
    let page = page("how-to/install.md");
    let table = page.split("## Values of upstream Akri").nth(1).unwrap().split("\n\nThe objects").next().unwrap();
    let words: Vec<&str> = table.split(|character: char| !character.is_ascii_alphanumeric()).collect();
    let mut missing = Vec::new();
    for (path, theirs) in &theirs {
        let ours = ours.get(path);
        let is_same = ours == Some(theirs) || is_empty(ours) && is_empty(Some(theirs));
        let mut segments = path.split('.').skip(usize::from(path.contains('.')));
        if !is_same && !segments.any(|segment| words.contains(&segment)) {
            missing.push(format!("{path}: {theirs}, here {ours:?}"));
        }
    }
    assert_eq!(missing, <[String; 0]>::default());
}

/// Upstream's chart and ours make the same Configurations of the values with which upstream tests its own.
#[test] // rule 65
fn charts_make_the_same_of_upstreams_test_values() {
    let (Some(checkout), Some(program)) = (checkout(), program("helm")) else { return };
    for name in ["helm-lint-values", "helm-lint-values-jobs"] {
        let values = checkout.join(format!("test/{name}.yaml"));
        let arguments = ["--values", values.to_str().unwrap()];
        let theirs = Command::new(program.clone())
            .args(["template", "akri"])
            .arg(checkout.join("deployment/helm"))
            .args(arguments)
            .output()
            .unwrap();
        let ours = helm(&arguments).unwrap();
        assert!(ours.status.success(), "{}", String::from_utf8_lossy(&ours.stderr));
        let configurations = |rendered: &[u8]| {
            let all: Vec<Value> = serde_saphyr::from_multiple(std::str::from_utf8(rendered).unwrap()).unwrap();
            let all = all.into_iter().filter(|object| object["kind"] == "Configuration");
            all.map(|object| (object["metadata"]["name"].as_str().unwrap().to_owned(), object))
                .collect::<BTreeMap<_, _>>()
        };
        let (theirs, ours) = (configurations(&theirs.stdout), configurations(&ours.stdout));
        assert_eq!((theirs.len(), theirs.keys().eq(ours.keys())), (5, true));
        for (name, theirs) in theirs {
            let details = |object: &Value| -> Value {
                serde_saphyr::from_str(object["spec"]["discoveryHandler"]["discoveryDetails"].as_str().unwrap())
                    .unwrap()
            };
            let of_ours = all_leaves(&details(&ours[&name]));
            assert!(
                all_leaves(&details(&theirs)).iter().all(|(path, value)| of_ours.get(path) == Some(value)),
                "{name}"
            );
            let (theirs, ours) = (all_leaves(&theirs["spec"]), all_leaves(&ours[&name]["spec"]));
            let differing: Vec<&String> = theirs
                .iter()
                .filter(|(path, value)| {
                    !(path.ends_with("discoveryDetails") || is_empty(Some(value)) && is_empty(ours.get(*path)))
                })
                .filter(|(path, value)| ours.get(*path) != Some(value))
                .map(|(path, _)| path)
                .collect();
            let is_known = |path: &&String| path.ends_with("securityContext.privileged");
            assert!(differing.iter().all(is_known), "{name}: {differing:?}");
        }
    }
}
