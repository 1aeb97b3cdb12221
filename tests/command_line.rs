//! The command line: what it prints for people and programs, and how it ends.

use std::fs;

use crate::support::node::{Node, identities};

const CAM: &str = "\
apiVersion: akri.sh/v0
kind: Configuration
metadata:
  name: cam
spec:
  discoveryHandler:
    name: debugEcho
    discoveryDetails: |
      descriptions: [foo0]
";

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[tokio::test]
async fn good_answers_are_for_programs_too() {
    let node = Node::new();
    for form in ["json", "yaml"] {
        let output = node.discover(CAM, &["-o", form]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let found: serde_json::Value = serde_saphyr::from_str(&text(&output.stdout)).unwrap();
        assert_eq!(found[0]["resource"], "akri.sh/cam-8120fe");
        assert_eq!(found[0]["device"]["properties"]["DEBUG_ECHO_DESCRIPTION"], "foo0");
    }
    let none = node.discover(&CAM.replace("[foo0]", "[]"), &["-o", "json"]);
    assert_eq!((none.status.code(), text(&none.stdout).trim()), (Some(0), "[]"), "no device is no failure");

    let get = |state: &str, flags: &[&str]| {
        let state = node.path(state);
        node.akri(&[&["get", "instances", "--state-dir", state.to_str().unwrap()], flags].concat())
    };
    let missing = get("state", &[]);
    assert_eq!(missing.status.code(), Some(1));
    let told = "error: no agent keeps its state in 'PATH'; name its directory with --state-dir\n";
    assert_eq!(text(&missing.stderr), told.replace("PATH", node.path("state").to_str().unwrap()));
    node.write("manifests/cam.yaml", CAM);
    let _agent = node.start();
    let found = node.wait_for_instances("the device", |list| list.len() == 1).await;
    let shown: Vec<akri_api::Instance> = serde_json::from_slice(&get("state", &["-o", "json"]).stdout).unwrap();
    assert_eq!(identities(&shown), identities(&found));
    let table = text(&get("state", &[]).stdout);
    assert!(table.lines().nth(1).unwrap().starts_with("default     akri.sh/cam-8120fe   cam"), "{table}");
}

#[tokio::test]
async fn a_state_directory_that_can_not_be_used_is_named() {
    let node = Node::new();
    fs::write(node.path("file"), "").unwrap();
    for name in ["lock", "journal.jsonl"] {
        fs::create_dir_all(node.path(&format!("with-{name}")).join(name)).unwrap();
    }
    for (name, file) in [("with-instances", "instances"), ("with-compiled", "compiled")] {
        fs::create_dir_all(node.path(name)).unwrap();
        fs::write(node.path(name).join(file), "").unwrap();
    }
    for (state, told) in [
        (
            "file/x",
            "cannot create state directory 'PATH': File exists (os error 17); name another one with --state-dir\n",
        ),
        ("file", "cannot create state directory 'PATH': File exists"),
        ("with-lock", "cannot lock 'PATH/lock': Is a directory"),
        ("with-journal.jsonl", "cannot read journal 'PATH/journal.jsonl': Is a directory"),
        ("with-instances", "cannot create directory 'PATH/instances': "),
        ("with-compiled", "cannot start the component host: the cache directory PATH/compiled: "),
    ] {
        let path = node.path(state).display().to_string();
        let (manifests, components) = (node.path("manifests"), node.path("components"));
        let output = node.akri(&[
            "agent",
            "--local",
            manifests.to_str().unwrap(),
            "--components",
            components.to_str().unwrap(),
            "--state-dir",
            &path,
            "--kubelet-dir",
            node.path("kubelet").to_str().unwrap(),
        ]);
        let told = format!("error: {}", told.replace("PATH", &path));
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains(&told), "{told}: {}", text(&output.stderr));
    }
    assert_eq!(fs::read_dir(node.path("kubelet")).unwrap().count(), 0, "nothing was registered");
}
