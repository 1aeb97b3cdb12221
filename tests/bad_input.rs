//! Bad input: an error that names file and field, and everything else goes on.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Output;

use akri_api::Configuration;

use crate::support::kubelet::Kubelet;
use crate::support::node::{Node, guest, identities, resource_of, wait_for};

/// A Configuration, with what a table wants to break.
const GOOD: &str = "\
apiVersion: akri.sh/v0
kind: Configuration
metadata:
  name: NAME
spec:
  discoveryHandler:
    name: debugEcho
    discoveryDetails: |
      descriptions: [foo0]
  capacity: 1
";

/// A piece of [`GOOD`], what stands there instead, and what is said of it after the file's name.
const BROKEN: [(&str, &str, &str); 9] = [
    ("name: NAME", "name: [NAME", ":5: "),
    ("  capacity: 1", "\tcapacity: 1", ":10: "),
    ("capacity:", "capacty:", ":10: spec.capacty: unknown field"),
    ("capacity: 1", "capacity: 0", ":10: spec.capacity: 0 is not between 1 and 1000"),
    ("capacity: 1", "capacity: one", ":10: spec.capacity: invalid type: string \"one\", expected a number"),
    ("kind: Configuration", "kind: Pod", ":2: kind: 'Pod' is not Configuration, DiscoveryHandler, ConfigMap or Secret"),
    ("akri.sh/v0", "v1", ":1: apiVersion: 'v1' is not akri.sh/v0"),
    ("    name: debugEcho", "    nam: debugEcho", ":7: spec.discoveryHandler.nam: unknown field, did you mean 'name'?"),
    ("capacity: 1", "protocol: {}", ":10: spec.protocol: unknown field; today it is spec.discoveryHandler"),
];

fn good(name: &str) -> String {
    GOOD.replace("NAME", name)
}

fn broken(name: &str, from: &str, to: &str) -> String {
    let text = GOOD.replace(from, to);
    assert_ne!(text, GOOD, "{from}");
    text.replace("NAME", name)
}

#[tokio::test] // rule 33
async fn bad_manifests_are_named_and_good_ones_are_served() {
    let node = Node::new();
    let kubelet = Kubelet::start(&node.path("kubelet"));
    for (index, (from, to, _)) in BROKEN.iter().enumerate() {
        node.write(&format!("manifests/bad-{index}.yaml"), &broken(&format!("bad-{index}"), from, to));
    }
    node.write("manifests/two.yaml", &good("second"));
    node.write("manifests/good.yaml", &good("good"));
    let agent = node.start();
    let found = node.wait_for_instances("the good ones' devices", |list| list.len() == 2).await;
    let resource = resource_of(&found[0]);
    kubelet.wait_for("a slot", |view| view.resource(&resource).allocatable() == 1).await;
    kubelet.admit("pod", "container", &resource, 1).await.unwrap();
    let expected_text =
        |name: &str, what: &str| format!("{}{what}", node.path(&format!("manifests/{name}.yaml")).display());
    for (index, (.., what)) in BROKEN.iter().enumerate() {
        agent.wait_for_log(&expected_text(&format!("bad-{index}"), what)).await;
    }
    for index in 0..BROKEN.len() {
        node.write(&format!("manifests/bad-{index}.yaml"), &good(&format!("bad-{index}")));
    }
    fs::write(node.path("manifests/bytes.yaml"), [0xff, 0xfe, 0]).unwrap();
    fs::write(node.path("manifests/large.yaml"), vec![b'#'; (4 << 20) + 1]).unwrap();
    fs::create_dir(node.path("manifests/directory.yaml")).unwrap();
    symlink("nowhere", node.path("manifests/link.yaml")).unwrap();
    node.write("manifests/two.yaml", &format!("kind: Pod\n---\n{}", good("second")));
    for (name, what) in [
        ("bytes", ": cannot read the file: not a text in UTF-8"),
        ("large", ": cannot read the file: larger than 4194304 bytes"),
        ("directory", ": cannot read the file: Is a directory"),
        ("link", ": cannot read the file: No such file or directory"),
        ("two", ":1: kind: 'Pod' is not Configuration, DiscoveryHandler, ConfigMap or Secret"),
    ] {
        agent.wait_for_log(&expected_text(name, what)).await;
    }
    node.wait_for_instances("every device", |list| list.len() == 2 + BROKEN.len()).await;
    for name in ["bytes", "large", "link"] {
        node.remove(&format!("manifests/{name}.yaml"));
    }
    fs::remove_dir(node.path("manifests/directory.yaml")).unwrap();
    node.write("manifests/two.yaml", &good("second"));
    agent.wait_for_log("all manifests are readable again").await;
    let error = &expected_text("bad-0", BROKEN[0].2);
    assert_eq!(agent.log().matches(error).count(), 1, "an error is told once");
}

#[tokio::test] // rule 26
async fn broken_or_emptied_file_deletes_nothing() {
    let node = Node::new();
    let kubelet = Kubelet::start(&node.path("kubelet"));
    node.write("manifests/cam.yaml", &good("cam").replace("capacity: 1", "capacity: 2"));
    let agent = node.start();
    let found = node.wait_for_instances("the device", |list| list.len() == 1).await;
    let resource = resource_of(&found[0]);
    kubelet.wait_for("two slots", |view| view.resource(&resource).allocatable() == 2).await;
    for (from, to, what) in BROKEN {
        node.write("manifests/cam.yaml", &broken("cam", from, to));
        agent.wait_for_log(&format!("{}{what}", node.path("manifests/cam.yaml").display())).await;
    }
    kubelet.admit("pod", "container", &resource, 2).await.unwrap();
    assert_eq!(identities(&node.instances()), identities(&found));
    let lists = kubelet.view(|view| view.resource(&resource).lists);
    assert!(lists.iter().all(|list| list.len() == 2), "nothing ever changed: {lists:?}");
    node.write("manifests/cam.yaml", &good("cam").replace("capacity: 1", "capacity: 3"));
    let edited = node.wait_for_instances("the good edit", |list| list.iter().all(|i| i.spec.capacity == 3)).await;
    assert_eq!(identities(&edited), identities(&found));

    // The same at the start of an agent, which has seen neither file before.
    node.write("manifests/emptied.yaml", &good("emptied"));
    let both = node.wait_for_instances("both", |list| list.len() == 2).await;
    drop(agent);
    node.write("manifests/cam.yaml", "spec: [");
    node.write("manifests/emptied.yaml", "");
    let agent = node.start();
    for (file, why) in [("cam", ""), ("emptied", ": is empty; delete the file if its objects are to go, too")] {
        agent.wait_for_log(&format!("{}{why}", node.path(&format!("manifests/{file}.yaml")).display())).await;
        agent.wait_for_log(&format!("round done configuration=default/{file} devices=1")).await;
    }
    assert_eq!(identities(&node.instances()), identities(&both));
    node.remove("manifests/emptied.yaml");
    node.write("manifests/cam.yaml", &good("cam"));
    node.wait_for_instances("one, since the file of the other is gone", |list| list.len() == 1).await;
}

#[tokio::test] // rule 34
async fn unsupported_details_are_reported_in_the_status() {
    let node = Node::new();
    node.write_configuration("nobody", "onvif", "      {}\n", "");
    let rule = "      udevRules:\n      - 'SUBSYSTEM==\"mem\"'\n      - 'KERNAL==\"null\", SUBSYSTEM==\"mem\"'\n";
    node.write_configuration("rules", "udev", rule, "");
    node.write_configuration("details", "udev", "      udevRule: []\n", "");
    node.write_configuration("yaml", "udev", "      udevRules: [\n", "");
    node.write_echo("good", 1, &["foo0"]);
    let _agent = node.start();
    let nobody = node.wait_for_condition("nobody", "Ready", "False", "NoHandler").await;
    let expected_text = "no discovery handler 'onvif'; none of that name has registered at ";
    assert!(nobody.message.starts_with(expected_text), "{}", nobody.message);
    assert!(nobody.message.ends_with("; ready: debugEcho, udev"), "{}", nobody.message);
    node.wait_for_condition("nobody", "HandlerAvailable", "False", "NoHandler").await;
    for (name, message) in [
        ("rules", "udevRules[1]: unknown field 'KERNAL', did you mean 'KERNEL'?"),
        (
            "details",
            "udevRule: unknown field `udevRule`, expected one of `udevRules`, `groupRecursive`, `permissions`, `properties`",
        ),
        ("yaml", "the details are neither YAML nor JSON; invalid YAML in line 1 of the details: unclosed bracket '['"),
    ] {
        let valid = node.wait_for_condition(name, "DetailsValid", "False", "InvalidDetails").await;
        assert_eq!(valid.message, format!("invalid discoveryDetails: {message}"));
        node.wait_for_condition(name, "Ready", "False", "InvalidDetails").await;
    }
    node.wait_for_condition("good", "Ready", "True", "Discovered").await;
    let shown = node.akri(&["get", "configurations", "--state-dir", node.path("state").to_str().unwrap()]);
    let table = text(&shown.stdout);
    let line = |name: &str| table.lines().find(|line| line.split_whitespace().nth(1) == Some(name)).unwrap();
    assert!(line("good").contains("True") && line("good").contains("Discovered"), "{table}");
    assert!(line("nobody").contains("False") && line("nobody").contains("no discovery handler 'onvif'"), "{table}");
    assert!(line("rules").ends_with("did you mean 'KERNEL'?"), "one line each: {table}");
    let state = node.path("state");
    let shown = node.akri(&["get", "configurations", "-o", "json", "--state-dir", state.to_str().unwrap()]);
    let all: Vec<Configuration> = serde_json::from_slice(&shown.stdout).unwrap();
    let good = all.iter().find(|one| one.metadata.name.as_deref() == Some("good")).unwrap();
    assert_eq!(good.spec.discovery_handler.name, "debugEcho");
    assert!(good.status.is_some());
}

#[tokio::test] // rule 91
async fn invalid_components_are_refused_and_listed_by_name() {
    let node = Node::new();
    let digest = "0".repeat(64);
    for (name, file, spec) in [
        ("script", "script.wasm", String::new()),
        ("absent", "absent.wasm", String::new()),
        ("pinned", "guest.wasm", format!("    digest: sha256:{digest}\n")),
        ("twin", "debug_echo.wasm", "  name: debugEcho\n".to_owned()),
        ("misnamed", "debug_echo.wasm", String::new()),
    ] {
        node.write_handler(name, file, &spec);
    }
    node.write("components/script.wasm", "#!/bin/sh\nexit 0\n");
    fs::copy(guest(), node.path("components/guest.wasm")).unwrap();
    node.write_handler("path", "../manifests/x.wasm", "");
    node.write_configuration("script", "script", "      {}\n", "");
    node.write_echo("good", 1, &["foo0"]);
    let agent = node.start();
    let component = |file: &str| format!("component '{}'", node.path("components").join(file).display());
    let refusals = [
        ("script", format!("{}: no WebAssembly file: ", component("script.wasm"))),
        ("absent", format!("cannot read {}: No such file or directory", component("absent.wasm"))),
        ("pinned", format!("{} has digest sha256:", component("guest.wasm"))),
        ("pinned", format!(", the object wants sha256:{digest}")),
        ("twin", "handler 'debugEcho' belongs to DiscoveryHandler 'debug-echo'".to_owned()),
        ("misnamed", "the component is the handler 'debugEcho', the DiscoveryHandler is for 'misnamed'".to_owned()),
    ];
    let missing = node.wait_for_condition("script", "Ready", "False", "NoHandler").await;
    for (object, refusal) in &refusals {
        let is_shown = |line: &str| line.contains(refusal.as_str()) && line.contains(&format!("object=\"{object}\""));
        wait_for(refusal, || agent.log(), |log| log.lines().any(is_shown)).await;
    }
    let expected_text =
        format!("no discovery handler 'script'; DiscoveryHandler script was refused: {}", refusals[0].1);
    assert!(missing.message.starts_with(&expected_text), "{}", missing.message);
    let others = "; ready: debugEcho, udev; refused: absent (Unreadable), misnamed (NameMismatch), ";
    assert!(missing.message.contains(others), "{}", missing.message);
    let path = node.path("components/path.yaml");
    let named = ":7: spec.component.file: '../manifests/x.wasm' is not the name of a file in the component directory";
    agent.wait_for_log(&format!("{}{named}", path.display())).await;
    node.wait_for_condition("good", "Ready", "True", "Discovered").await;
    list_refused_handlers(&node).await;
}

/// `akri get handlers` has the reasons, also of a component that is refused while its former version runs on.
async fn list_refused_handlers(node: &Node) {
    let state = node.path("state").display().to_string();
    let row = |object: &str| {
        let table = text(&node.akri(&["get", "handlers", "--state-dir", &state]).stdout);
        let columns = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        table.lines().map(columns).find(|columns| columns.get(1).is_some_and(|name| name == object)).unwrap_or_default()
    };
    let ready = |row: &Vec<String>| row.last().is_some_and(|last| last.starts_with("sha256:"));
    wait_for("a handler", || row("debug-echo"), ready).await;
    let is_listed = |row: &String| row.starts_with("- absent component Refused ") && row.contains(" 0 Unreadable: ");
    wait_for("a refused handler", || row("absent").join(" "), is_listed).await;

    fs::write(node.path("components/debug_echo.wasm"), "broken").unwrap();
    let refused = |row: &Vec<String>| row.join(" ").contains(": component '");
    let kept = wait_for("the refusal", || row("debug-echo"), refused).await.join(" ");
    assert!(kept.starts_with("debugEcho debug-echo component Active "), "it runs on: {kept}");
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[tokio::test] // rule 33
async fn discover_names_file_line_and_field_when_it_fails() {
    let node = Node::new();
    let file = node.path("try.yaml").display().to_string();
    let printed = |output: &Output| text(&output.stderr);
    for (from, to, what) in BROKEN {
        let output = node.discover(&broken("cam", from, to), &[]);
        assert_eq!(output.status.code(), Some(1), "{to}");
        assert!(printed(&output).contains(&format!("error: {file}{what}")), "{what}: {}", printed(&output));
        assert!(output.stdout.is_empty(), "{}", text(&output.stdout));
    }
    let rules = "udevRules:\n      - 'KERNEL==\"null\"'\n      - 'KERNEL==\"a\",, ATTR==\"b\"'\n      - 'NAME=\"x\"'";
    let bad = good("cam").replace("debugEcho", "udev").replace("descriptions: [foo0]", rules);
    let output = node.discover(&format!("{bad}---\n{}", good("other")), &["--output", "json"]);
    assert_eq!(output.status.code(), Some(1));
    let details = "spec.discoveryHandler.discoveryDetails";
    for expected_text in [
        format!("error: {file}:11: {details}.udevRules[1]: expected a field such as KERNEL or ATTRS{{idVendor}}\n"),
        "\n  KERNEL==\"a\",, ATTR==\"b\"\n              ^\n".to_owned(),
        format!("error: {file}:12: {details}.udevRules[2]: 'NAME' acts on devices, and rules here only match them\n"),
        "\n  NAME=\"x\"\n  ^^^^\n".to_owned(),
    ] {
        assert!(printed(&output).contains(&expected_text), "{expected_text}\n{}", printed(&output));
    }
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found[0]["configuration"], "default/other", "the other Configuration's round is run all the same");

    let nobody = node.discover(&good("cam").replace("debugEcho", "onvif"), &[]);
    assert_eq!(nobody.status.code(), Some(1));
    let expected_text = "error: default/cam: no discovery handler 'onvif' among those of --components: debugEcho, udev";
    assert!(printed(&nobody).contains(expected_text), "{}", printed(&nobody));
    assert!(nobody.stdout.is_empty(), "an error, and not 'no devices': {}", text(&nobody.stdout));
    let misspelt = node.discover(&good("cam").replace("debugEcho", "debugEco"), &[]);
    let hint = "debugEcho, udev, did you mean 'debugEcho'?";
    assert!(printed(&misspelt).contains(hint), "{}", printed(&misspelt));
    let file_as_handler = node.discover(&good("cam"), &["--handler", &file]);
    assert_eq!(file_as_handler.status.code(), Some(1));
    assert!(
        printed(&file_as_handler).contains("no WebAssembly file: it is a text that begins"),
        "{}",
        printed(&file_as_handler)
    );
    let empty = node.discover("# nothing\n", &[]);
    assert!(
        empty.status.code() == Some(1) && printed(&empty).contains("holds no Configuration"),
        "{}",
        printed(&empty)
    );
    let absent = node.akri(&["discover", "/nowhere/x.yaml"]);
    assert_eq!(absent.status.code(), Some(1));
    assert_eq!(printed(&absent), "error: cannot read '/nowhere/x.yaml': No such file or directory (os error 2)\n");
    assert_eq!(node.akri(&["discover"]).status.code(), Some(2), "wrong usage");
}
