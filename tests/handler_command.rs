//! `akri handler`: for those who write handlers, and for those who decide what handlers may reach.

use std::fs;
use std::process::{Command, Output};

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::support::costly_components::nested_loops;
use crate::support::node::{Node, akri, built_components, guest};

const CONFIGURATION: &str = "\
apiVersion: akri.sh/v0
kind: Configuration
metadata:
  name: NAME
spec:
  discoveryHandler:
    name: HANDLER
    discoveryDetails: |-
      DETAILS
    discoveryProperties:
    - name: PLAIN
      value: v
    - name: FROM
      valueFrom: {configMapKeyRef: {name: map, key: k}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: map}
data: {k: w}
";

const HANDLER: &str = "\
apiVersion: akri.sh/v0
kind: DiscoveryHandler
metadata: {name: h}
spec:
  component: {file: FILE}
  grants: GRANTS
";

fn configuration(name: &str, handler: &str, details: &str) -> String {
    CONFIGURATION.replace("NAME", name).replace("HANDLER", handler).replace("DETAILS", details)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// `akri handler COMMAND WASM FILE FLAGS`, with the file's text.
fn run(node: &Node, command: &str, wasm: &str, file: &str, flags: &[&str]) -> Output {
    node.write("try.yaml", file);
    let path = node.path("try.yaml");
    node.akri(&[&["handler", command, wasm, path.to_str().unwrap()], flags].concat())
}

fn of_json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)))
}

#[test]
fn run_prints_all_results_of_a_round() {
    let node = Node::new();
    let guest = guest().display().to_string();
    let output = run(&node, "run", &guest, &configuration("cam", "guest", "properties"), &["-o", "json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report = &of_json(&output)[0];
    assert_eq!((&report["configuration"], &report["handler"]), (&"default/cam".into(), &"guest".into()));
    assert_eq!(report["digest"].as_str().unwrap().len(), "sha256:".len() + 64);
    assert!(report["milliseconds"].as_f64().unwrap() > 0.0);
    // Triggers that start nothing are told, each with the reason.
    assert_eq!(report["triggers"], serde_json::json!([]));
    let refused = report["refused"].as_array().unwrap().iter().map(|why| why.as_str().unwrap());
    let expected = [
        "the trigger (\"moon\", \"full\"), which this host does not know: there are (\"uevent\", SUBSYSTEM), ",
        "devices of subsystem 'tty', a trigger of the handler, are not covered by grants.udev of the DiscoveryHandler; ",
        "datagrams to 239.255.255.250:3702, a trigger of the handler, are not covered by grants.multicast of the ",
    ];
    let refused: Vec<&str> = refused.collect();
    assert!(refused.iter().zip(expected).all(|(why, expected)| why.starts_with(expected)), "{refused:?}");
    assert_eq!(refused.len(), 3, "{refused:?}");
    let granted =
        "{udev: {subsystems: [tty]}, multicast: [{group: 239.255.255.250, port: 3702}], devicePaths: [/dev/**]}";
    let object = HANDLER.replace("FILE", "akri_guest.wasm").replace("GRANTS", granted);
    let with_object = |details: &str| format!("{}---\n{object}", configuration("cam", "guest", details));
    let started =
        of_json(&run(&node, "run", &guest, &with_object("properties"), &["-o", "json"]))[0]["triggers"].clone();
    assert_eq!(started, serde_json::json!(["uevent tty", "multicast 239.255.255.250:3702"]));
    let device = &report["devices"][0]["device"];
    assert_eq!(device["properties"]["PLAIN"], "v");
    assert_eq!(device["properties"]["FROM"], "w", "values from the file");

    let logged = of_json(&run(&node, "run", &guest, &configuration("cam", "guest", "log:hello"), &["-o", "json"]));
    let line = serde_json::json!({"level": "INFO", "context": "guest", "message": "hello"});
    assert_eq!(logged[0]["log"], serde_json::json!([line]));
    assert!(report["memoryBytes"].as_u64().unwrap() > 1 << 20, "{report}");
    assert!(report["load"]["milliseconds"].as_f64().unwrap() > 0.0);
    assert_eq!(logged[0]["load"]["compiled"], false, "the first round left it in the cache");
    let noted = run(&node, "run", &guest, &with_object("note"), &[]);
    let (table, printed) = (text(&noted.stdout), text(&noted.stderr));
    assert!(table.starts_with("default/cam: a round of guest 0.1.0 took "), "{table}");
    assert!(table.contains(" KiB; loaded in ") && table.contains(" ms, from the cache\n"), "{table}");
    assert!(table.contains("\nthe next is started by: uevent tty, multicast 239.255.255.250:3702\n"), "{table}");
    assert!(table.ends_with(" default/cam     -        noted\n"), "{table}");
    assert!(
        printed.contains("warning: default/cam: http://camera-1: camera 1 did not answer (Unreachable)"),
        "{printed}"
    );
    let table = text(&run(&node, "run", &guest, &with_object("devices:1"), &[]).stdout);
    assert!(table.contains("\ndevice-0:  PROPERTY_0=\"value-0-0\"  PROPERTY_1=\"value-0-1\"  PROPERTY_2="), "{table}");
    let logged = run(&node, "run", &guest, &configuration("cam", "guest", "log:hello"), &[]);
    for what in ["stdout hello", "stderr hello", " hello handler=\"guest\""] {
        assert!(text(&logged.stderr).contains(what), "{what}: {}", text(&logged.stderr));
    }
}

#[test]
fn run_takes_grants_from_file_or_flag_and_names_missing_ones() {
    let node = Node::new();
    let guest = guest().display().to_string();
    let handler = |grants: &str| HANDLER.replace("FILE", "akri_guest.wasm").replace("GRANTS", grants);
    let wanted = configuration("cam", "guest", "everything");
    let withheld = |output: &Output| of_json(output)[0]["withheld"].clone();
    let json = ["-o", "json"];
    // It names the node /dev/node and the mount /dev/mount, and nothing is granted by default.
    let without = run(&node, "run", &guest, &wanted, &json);
    assert_eq!(withheld(&without), serde_json::json!(["full"]));
    let hint = "hint: nothing is granted without a DiscoveryHandler; name its file with --handler-object";
    assert!(text(&without.stderr).contains(hint), "{}", text(&without.stderr));
    let in_file = format!("{wanted}---\n{}", handler("{mountPaths: [/dev/mount], containerPaths: [/in/**]}"));
    let output = run(&node, "run", &guest, &in_file, &json);
    assert_eq!(withheld(&output), serde_json::json!(["full"]));
    let remedy = "path '/dev/node' is not covered by grants.devicePaths of DiscoveryHandler 'h'; devicePaths: ['/dev/node'] would \
                  allow it";
    assert!(text(&output.stderr).contains(remedy), "{}", text(&output.stderr));
    assert!(!text(&output.stderr).contains(hint), "the file has one");
    let of_another = run(&node, "run", &guest, &in_file.replace("akri_guest.wasm", "other.wasm"), &json);
    let warning = "warning: nothing is granted: the DiscoveryHandler 'h' names 'other.wasm' and not 'akri_guest.wasm'";
    assert!(text(&of_another.stderr).contains(warning), "{}", text(&of_another.stderr));
    node.write(
        "object.yaml",
        &handler("{devicePaths: [/dev/node], mountPaths: [/dev/mount], containerPaths: [/in/**]}"),
    );
    let object = node.path("object.yaml");
    let by_flag = ["--handler-object", object.to_str().unwrap(), "-o", "json"];
    assert_eq!(withheld(&run(&node, "run", &guest, &in_file, &by_flag)), serde_json::json!([]), "the flag wins");
    // The object of an image says by its digest which component it means, as `akri handler push` prints it.
    let digest = Sha256::digest(fs::read(&guest).unwrap());
    let digest = digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let image = format!("image: registry.example/guest@sha256:{}, digest: sha256:{digest}", "a".repeat(64));
    let of_image = handler("{devicePaths: [/dev/node], mountPaths: [/dev/mount], containerPaths: [/in/**]}")
        .replace("file: akri_guest.wasm", &image);
    let of_image = format!("{wanted}---\n{of_image}");
    assert_eq!(withheld(&run(&node, "run", &guest, &of_image, &json)), serde_json::json!([]));
    node.write("image.yaml", &of_image);
    let file = node.path("image.yaml").display().to_string();
    let discovered = node.akri(&["discover", &file, "--handler", &guest, "-o", "json"]);
    assert!(
        discovered.status.success() && !text(&discovered.stdout).contains("\"full\"]"),
        "{}",
        text(&discovered.stdout)
    );

    let object = HANDLER.replace("FILE", "akri_guest.wasm");
    let try_with = |grants: &str| {
        let file =
            format!("{}---\n{}", configuration("cam", "guest", "tcp:127.0.0.1:9"), object.replace("GRANTS", grants));
        let refused = of_json(&run(&node, "run", &guest, &file, &["-o", "json"]))[0]["refused"].clone();
        let refused = refused.as_array().unwrap().iter().filter(|why| !why.as_str().unwrap().contains("trigger"));
        Value::Array(refused.cloned().collect())
    };
    let empty = "a tcp socket: grants.tcp of DiscoveryHandler 'h' is empty; a line to begin with, below spec.grants: \
                 tcp: [{networks: [192.0.2.7], ports: [502]}]";
    assert_eq!(try_with("{}"), serde_json::json!([empty]));
    let wanted = "{networks: ['127.0.0.1/32'], ports: [9]}";
    let other = "tcp to 127.0.0.1, port 9, is not covered by grants.tcp of DiscoveryHandler 'h'; ";
    let refused = try_with("{tcp: [{networks: [192.0.2.0/24], ports: [9]}]}");
    assert_eq!(refused, serde_json::json!([format!("{other}{wanted} would allow it")]));
    assert_eq!(try_with(&format!("{{tcp: [{wanted}]}}")), serde_json::json!([]), "what it says is right");
}

#[test]
fn validate_names_file_line_and_field() {
    let node = Node::new();
    let guest = guest().display().to_string();
    let file = format!(
        "{}---\n{}---\n{}---\n{}",
        configuration("good", "guest", "devices:1"),
        configuration("trap", "guest", "panic").replace("name: map", "name: fourth"),
        configuration("bad", "guest", "invalid-details").replace("name: map", "name: other"),
        configuration("foreign", "udev", "x").replace("name: map", "name: third"),
    );
    let output = run(&node, "validate", &guest, &file, &[]);
    assert_eq!(output.status.code(), Some(1));
    let line = |name: &str| file.lines().position(|line| line == format!("  name: {name}")).unwrap() + 5;
    let expected = format!(
        "error: {}:{}: spec.discoveryHandler.discoveryDetails.word: the details have to name a behaviour of the guest\n",
        node.path("try.yaml").display(),
        line("bad")
    );
    assert!(text(&output.stderr).ends_with(&expected), "{}", text(&output.stderr));
    let good = "default/good: valid; rounds are started by: uevent tty, multicast 239.255.255.250:3702\n";
    assert_eq!(text(&output.stdout), format!("{good}default/trap: invalid\ndefault/bad: invalid\n"));
    let verdicts = of_json(&run(&node, "validate", &guest, &file, &["-o", "json"]));
    let valid = verdicts.as_array().unwrap().iter().map(|verdict| verdict["valid"].as_bool().unwrap());
    assert_eq!(valid.collect::<Vec<bool>>(), [true, false, false]);
    assert!(verdicts[1]["error"].as_str().unwrap().starts_with("the handler trapped: "), "{verdicts}");
    assert_eq!(verdicts[2]["problems"][0]["field"], "/spec/discoveryHandler/discoveryDetails/word");
    assert_eq!(verdicts.as_array().unwrap().len(), 3, "those for other handlers are left out");
}

#[test]
fn unsupported_requests_are_explained() {
    let node = Node::new();
    let guest = guest().display().to_string();
    let good = configuration("cam", "guest", "devices:1");
    for (command, wasm, file, expected) in [
        ("run", "/nowhere.wasm", good.clone(), "cannot read '/nowhere.wasm': No such file or directory"),
        (
            "validate",
            &*guest,
            configuration("cam", "udev", "x"),
            "holds no Configuration for handler 'guest'; handlers named there: udev",
        ),
        (
            "validate",
            &*guest,
            good.replace("    name: guest", "    nam: guest"),
            ":7: spec.discoveryHandler.nam: unknown field",
        ),
        (
            "run",
            &*guest,
            configuration("cam", "guest", "panic"),
            "default/cam: the handler trapped: while it validated the details, ",
        ),
        (
            "run",
            &*guest,
            configuration("cam", "guest", "loop"),
            "it was computing in akri_guest::hostile::spin; if that is no ",
        ),
        (
            "run",
            &*guest,
            configuration("cam", "guest", "unavailable"),
            "default/cam: unavailable: the camera does not answer",
        ),
        (
            "run",
            &*guest,
            good.replace("name: map, key", "name: nowhere, key"),
            "default/cam: discoveryProperties: property 'FROM': ConfigMap default/nowhere does not exist",
        ),
    ] {
        let output = run(&node, command, wasm, &file, &[]);
        assert_eq!(output.status.code(), Some(1), "{expected}");
        assert!(
            text(&output.stderr).contains("error: ") && text(&output.stderr).contains(expected),
            "{}",
            text(&output.stderr)
        );
    }
    let script = node.path("try.yaml").display().to_string();
    let output = run(&node, "run", &script, &good, &[]);
    assert!(
        text(&output.stderr).contains("no WebAssembly file: it is a text that begins with 'apiVersion: akri.sh/v0'"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn inspect_shows_imports_and_grants_and_suggests_some() {
    let node = Node::new();
    let udev = built_components().join("udev.wasm").display().to_string();
    let inspect = |flags: &[&str]| node.akri(&[&["handler", "inspect", &udev], flags].concat());
    let output = inspect(&["-o", "json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report = &of_json(&output)[0];
    assert_eq!((&report["handler"], &report["exports"]), (&"udev".into(), &"akri:discovery/handler@0.1.0".into()));
    assert_eq!(report["bytes"].as_u64().unwrap(), fs::metadata(&udev).unwrap().len());
    let line = |report: &Value, name: &str| {
        let imports = report["imports"].as_array().unwrap().clone();
        imports.into_iter().find(|import| import["name"].as_str().unwrap().starts_with(name)).unwrap()
    };
    let import = line(report, "akri:discovery/udev@");
    assert_eq!((&import["kind"], &import["covered"]), (&"asked".into(), &"not granted".into()));
    assert_eq!(line(report, "wasi:cli/stderr@")["kind"], "runtime");

    let object = HANDLER.replace("FILE", "udev.wasm");
    node.write("object.yaml", &object.replace("GRANTS", "{udev: {subsystems: [tty]}}"));
    let path = node.path("object.yaml").display().to_string();
    let granted = text(&inspect(&["--handler-object", &path]).stdout);
    let row = granted.lines().find(|line| line.starts_with("akri:discovery/udev@")).unwrap();
    assert!(row.contains(" asked ") && row.ends_with("granted   grants.udev: tty"), "{row}");
    assert!(granted.starts_with("handler    udev 0.1.0\ndigest     sha256:"), "{granted}");

    let both = "{secrets: [x], tcp: [{networks: [10.0.0.0/8], ports: [80]}]}";
    node.write("object.yaml", &object.replace("GRANTS", both));
    assert!(
        text(&inspect(&["--handler-object", &path]).stderr)
            .starts_with("warning: it gets secrets and may use the network")
    );
    // Of several DiscoveryHandlers that which names the file counts.
    let other = object.replace("{name: h}", "{name: other}").replace("udev.wasm", "other.wasm");
    node.write("object.yaml", &format!("{object}---\n{other}").replace("GRANTS", "{}"));
    assert!(inspect(&["--handler-object", &path]).status.success());
    node.write("object.yaml", &format!("{other}---\n{}", other.replace("other}", "third}")).replace("GRANTS", "{}"));
    let none = text(&inspect(&["--handler-object", &path]).stderr);
    assert_eq!(none, format!("error: none of the DiscoveryHandlers of '{path}' names 'udev.wasm'\n"));

    let inspect = |grants: &str, flags: &[&str]| {
        node.write("object.yaml", &HANDLER.replace("FILE", "udev.wasm").replace("GRANTS", grants));
        let path = node.path("object.yaml").display().to_string();
        node.akri(&[&["handler", "inspect", &udev, "--handler-object", &path], flags].concat())
    };
    let output = inspect("{}", &[]);
    let by_default = "\nGRANT            WHAT\ndevicePaths      none\nmountPaths       none\ncontainerPaths   none\n\
                      environment      none\n";
    assert!(text(&output.stdout).ends_with(by_default), "{}", text(&output.stdout));
    assert_eq!(text(&output.stderr), "");
    let grants = "{devicePaths: [/dev/video*, /dev/bus/**], environment: [PATH]}";
    let some = "\ndevicePaths      /dev/video*, /dev/bus/**\nmountPaths       none\ncontainerPaths   none\n\
                environment      PATH\n";
    assert!(text(&inspect(grants, &[]).stdout).ends_with(some));
    let report = of_json(&inspect(grants, &["-o", "json"]));
    assert_eq!(report[0]["devicePaths"], serde_json::json!(["/dev/video*", "/dev/bus/**"]));
    assert_eq!(report[0]["mountPaths"], serde_json::json!([]));
    let output = inspect("{devicePaths: [/**], mountPaths: [/dev/x, /etc/cam.conf, /device]}", &["-o", "json"]);
    let warning = "its devices may name paths of the node outside of /dev (/**, /device, /etc/cam.conf), which containers \
                   then get";
    assert_eq!(of_json(&output)[0]["warnings"], serde_json::json!([warning]));
    assert_eq!(text(&output.stderr), format!("warning: {warning}\n"));

    let suggested = text(&node.akri(&["handler", "inspect", &udev, "--suggest-grants"]).stdout);
    assert!(suggested.contains("\n    file: udev.wasm\n  grants:\n    udev: {subsystems: []}"), "{suggested}");
    // It is a DiscoveryHandler as it is.
    node.write("object.yaml", &suggested);
    let path = node.path("object.yaml").display().to_string();
    let output = node.akri(&["handler", "inspect", &udev, "--handler-object", &path]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let onvif = built_components().join("onvif.wasm").display().to_string();
    let suggested = text(&node.akri(&["handler", "inspect", &onvif, "--suggest-grants"]).stdout);
    for grant in ["\n    multicast: []", "\n    secrets: []", "\n    http: []"] {
        assert!(suggested.contains(grant), "{suggested}");
    }
    // A program that was compiled imports what it calls, and lookups of names with that; an interpreter imports everything.
    let opcua = built_components().join("opcua.wasm").display().to_string();
    let suggested = text(&node.akri(&["handler", "inspect", &opcua, "--suggest-grants"]).stdout);
    assert!(suggested.contains("\n    tcp: []") && suggested.contains("\n    # names: []"), "{suggested}");
    let everything = guest().display().to_string();
    let suggested = text(&node.akri(&["handler", "inspect", &everything, "--suggest-grants"]).stdout);
    assert!(suggested.contains("\n    udev: {") && suggested.contains("\n    # tcp: []"), "{suggested}");
}

#[test]
fn run_refuses_objects_the_agent_would_refuse() {
    let node = Node::new();
    let guest = guest().display().to_string();
    let wanted = configuration("cam", "guest", "devices:1");
    let inspect = |object: &str| node.akri(&["handler", "inspect", &guest, "--handler-object", object]);
    let report = of_json(&node.akri(&["handler", "inspect", &guest, "-o", "json"]));
    let digest = report[0]["digest"].as_str().unwrap();
    let object = |component: &str| {
        let text = HANDLER.replace("file: FILE", component).replace("GRANTS", "{}");
        node.write("object.yaml", &text);
        (node.path("object.yaml").display().to_string(), text)
    };
    let (path, _) =
        object(&format!("file: akri_guest.wasm, digest: '{}'", digest.to_uppercase().replace("SHA", "sha")));
    assert!(inspect(&path).status.success());
    assert!(run(&node, "run", &guest, &wanted, &["--handler-object", &path]).status.success());

    let other = format!("sha256:{}", "0".repeat(64));
    let (path, text_of_object) = object(&format!("file: akri_guest.wasm, digest: '{other}'"));
    let expected = format!(
        "error: the component has digest {digest}, the DiscoveryHandler 'h' wants {other}, so that the agent would refuse \
         it; if it is the right one, change spec.component.digest\n"
    );
    let in_file = format!("{wanted}---\n{text_of_object}");
    for output in [
        inspect(&path),
        run(&node, "run", &guest, &wanted, &["--handler-object", &path]),
        run(&node, "run", &guest, &in_file, &[]),
    ] {
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(1), expected.clone()));
    }

    let (path, _) = object("file: other.wasm");
    let output = inspect(&path);
    let expected = format!(
        "error: the DiscoveryHandler 'h' of '{path}' names 'other.wasm', so that the agent would not run 'akri_guest.wasm' \
         for it; name that in spec.component.file\n"
    );
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(1), expected));
}

#[test]
fn component_over_its_compile_limits_is_refused_with_the_remedy() {
    let node = Node::new();
    let guest = guest().display().to_string();
    let object = HANDLER.replace("FILE", "akri_guest.wasm").replace("GRANTS", "{}");
    node.write("configuration.yaml", &configuration("cam", "guest", "devices:1"));
    let paths = ["configuration.yaml", "object.yaml", "out"].map(|name| node.path(name).display().to_string());
    let [configuration, object_path, out] = &paths;
    let within = |memory: &str, command: &[&str]| {
        node.write("object.yaml", &format!("{object}  limits: {{compile: {{memory: {memory}}}}}\n"));
        // Nothing is compiled yet.
        let command = [&["handler"], command, &["--handler-object", object_path]].concat();
        let output = Command::new(akri()).args(command).env("XDG_CACHE_HOME", node.path("cache")).output().unwrap();
        (output.status.code(), text(&output.stderr))
    };
    let refused = format!(
        "error: '{guest}': compiling it takes more than 32 MiB of memory; limits.compile.memory of its DiscoveryHandler \
         allows more, and an agent refuses the component without it. For an interpreter this is enough, below its spec:\n  \
         limits: {{compile: {{memory: 1Gi, time: 3m}}}}\n"
    );
    for command in [&["run", &guest, configuration][..], &["inspect", &guest]] {
        assert_eq!(within("32Mi", command), (Some(1), refused.clone()), "{command:?}");
        assert_eq!(within("256Mi", command).0, Some(0), "{command:?}");
        fs::remove_dir_all(node.path("cache")).unwrap();
    }
    // A packed component is compiled within its limits, also if code of it is in the cache.
    assert_eq!(within("256Mi", &["inspect", &guest]).0, Some(0));
    assert_eq!(within("32Mi", &["pack", &guest, "--out", out]), (Some(1), refused));
    assert!(!node.path("out").exists(), "nothing is written");
    assert_eq!(within("256Mi", &["pack", &guest, "--out", out]).0, Some(0));

    // The compiler alone names the limit that is too small.
    let costly = node.path("costly.wasm").display().to_string();
    fs::write(&costly, nested_loops(40_000)).unwrap();
    let out = node.path("compiled").display().to_string();
    let compile = |file: &str, limit: &[&str]| {
        let output = node.akri(&[&["handler", "compile", file, "--output", &out], limit].concat());
        (output.status.code(), text(&output.stderr))
    };
    for (file, limit, over) in [
        (&guest, ["--memory", "33554432"], "32 MiB of memory; limits.compile.memory"),
        (&costly, ["--time", "1"], "1s of processor time; limits.compile.time"),
    ] {
        let message =
            format!("error: '{file}': compiling it takes more than {over} of its DiscoveryHandler allows more\n");
        assert_eq!(compile(file, &limit), (Some(1), message));
    }
    node.write("costly.wasm", "no component");
    let (code, message) = compile(&costly, &[]);
    assert!(code == Some(1) && message.matches("error: ").count() == 1, "{message}");
    assert_eq!(compile(&guest, &[]).0, Some(0));
    let code = fs::read_dir(node.path("compiled/modules"))
        .unwrap()
        .flat_map(|versions| fs::read_dir(versions.unwrap().path()));
    assert!(code.flatten().count() > 0, "it is written into --output");
    let usage = text(&node.akri(&["handler", "compile", "--help"]).stdout);
    assert!(
        usage.contains("Usage: akri handler compile [OPTIONS] <--output <DIR>|--precompiled <DIR>> [WASM]..."),
        "{usage}"
    );
}
