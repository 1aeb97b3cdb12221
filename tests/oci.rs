//! Components in registries: pushed, pulled by digest, kept, signed.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use akri_api::condition;
use akri_api::{DiscoveryHandlerStatus, HandlerState};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rcgen::KeyPair;
use serde_json::json;

use crate::support::node::{Node, akri, built_components, compiled_components, guest};
use crate::support::registry::{Image, LOGIN, Registry, digest_of, fake};
use crate::support::skip::skip;

/// The guest, and versions of it that do the same and are not the same.
fn version(number: u8) -> Vec<u8> {
    let mut bytes = fs::read(guest()).unwrap();
    if number > 0 {
        bytes.extend([0, 3, 2, b'v', number]);
    }
    bytes
}

/// Runs `akri handler` with the credentials of [`LOGIN`], if it has to.
fn handler(node: &Node, registry: &Registry, arguments: &[&str], login: bool) -> Output {
    let docker = node.path("docker");
    fs::create_dir_all(&docker).unwrap();
    let config = json!({"auths": {registry.name(): {"auth": BASE64_STANDARD.encode(LOGIN)}}});
    fs::write(docker.join("config.json"), if login { config.to_string() } else { "{}".to_owned() }).unwrap();
    let mut command = Command::new(akri());
    command.arg("handler").args(arguments).args(["--insecure-registry", &registry.name()]);
    command.env("DOCKER_CONFIG", docker).env("XDG_CACHE_HOME", compiled_components()).output().unwrap()
}

/// Pushes a version of the guest, and returns its image.
fn push(node: &Node, registry: &Registry, number: u8, login: bool) -> String {
    let file = node.path("pushed.wasm");
    fs::write(&file, version(number)).unwrap();
    let reference = format!("{}/handlers/guest:{number}", registry.name());
    let output = handler(node, registry, &["push", file.to_str().unwrap(), &reference], login);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    image_in(&output)
}

/// Returns the image in the DiscoveryHandler that was printed.
fn image_in(output: &Output) -> String {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("    image: ")).unwrap_or_else(|| panic!("{text}"));
    line.to_owned()
}

/// Writes a DiscoveryHandler for an image; `more` is indented lines below `component`.
fn write_handler(node: &Node, image: &str, more: &str) {
    let text = format!(
        "apiVersion: akri.sh/v0\nkind: DiscoveryHandler\nmetadata: {{name: guest}}\nspec:\n  interval: 200ms\n  \
         component:\n    image: {image}\n{more}"
    );
    node.write("components/guest.yaml", &text);
}

async fn runs(node: &Node, number: u8) {
    let wanted = digest_of(&version(number)).replace("sha256:", "");
    let is_current = |status: &DiscoveryHandlerStatus| {
        let accepted = condition::find(&status.conditions, "Accepted");
        status.digest.as_ref() == Some(&wanted) && accepted.is_some_and(|accepted| accepted.status == "True")
    };
    node.wait_for_handler("guest", &format!("version {number}"), is_current).await;
}

async fn is_refused(node: &Node, reason: &str, message: &str) -> DiscoveryHandlerStatus {
    let refused = |status: &DiscoveryHandlerStatus| {
        let accepted = condition::find(&status.conditions, "Accepted");
        accepted.is_some_and(|a| (&*a.status, &*a.reason) == ("False", reason) && a.message.contains(message))
    };
    node.wait_for_handler("guest", &format!("{reason}: {message}"), refused).await
}

fn kept(node: &Node) -> Vec<PathBuf> {
    let entries = fs::read_dir(node.path("state/images")).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|end| end == "wasm")).collect()
}

#[tokio::test] // rule 74, threat 27
async fn image_is_pulled_once_and_kept() {
    let Some(mut registry) = Registry::start(false) else { return };
    let node = Node::new();
    let (first, second) = (push(&node, &registry, 1, false), push(&node, &registry, 2, false));
    assert_eq!(push(&node, &registry, 1, false), first, "the same component makes the same image");
    let flags = ["--insecure-registry", &registry.name()];
    write_handler(&node, &first, "");
    node.write_configuration("guest", "guest", "      devices:1\n", "");
    let agent = node.start_with(&flags);
    runs(&node, 1).await;
    node.wait_for_instances("the device", |list| list.len() == 1).await;

    // What is kept is used while the registry is away, also by the next agent.
    registry.stop();
    agent.kill();
    let agent = node.start_with(&flags);
    runs(&node, 1).await;
    assert!(!agent.log().contains("pulling"), "it is not pulled again");
    node.write_configuration("guest", "guest", "      devices:2\n", "");
    node.wait_for_instances("another device", |list| list.len() == 2).await;

    // The one that runs is kept until the next one runs.
    write_handler(&node, &second, "");
    let refused = is_refused(&node, "PullFailed", "cannot reach 127.0.0.1:").await;
    assert_eq!((refused.state, refused.digest), (HandlerState::Active, Some(digest_of(&version(1))[7..].to_owned())));
    assert_eq!(kept(&node).len(), 1);
    registry.restart();
    runs(&node, 2).await;
    crate::support::node::wait_for("the old one to go", || kept(&node).len(), |count| *count == 1).await;
    agent.kill();

    // A damaged one is pulled again.
    fs::write(&kept(&node)[0], version(1)).unwrap();
    let agent = node.start_with(&flags);
    runs(&node, 2).await;
    agent.wait_for_log("the kept component is damaged").await;
    agent.wait_for_log("component pulled").await;

    // What runs is not read again when something else changes.
    agent.wait_for_log("handler ready handler=\"guest\"").await;
    fs::remove_dir_all(node.path("state/images")).unwrap();
    registry.stop();
    write_handler(&node, &second, "  shared: false\n");
    node.write_configuration("guest", "guest", "      devices:3\n", "");
    node.wait_for_instances("a third device", |list| list.len() == 3).await;
    assert_eq!(agent.log().matches("pulling the component").count(), 1);
}

#[tokio::test] // rule 74
async fn registry_with_a_login_needs_the_pull_secret() {
    let Some(registry) = Registry::start(true) else { return };
    let node = Node::new();
    let reference = format!("{}/handlers/guest:1", registry.name());
    let denied = handler(&node, &registry, &["push", guest().to_str().unwrap(), &reference], false);
    let error = String::from_utf8_lossy(&denied.stderr).into_owned();
    assert!(!denied.status.success() && error.contains("without credentials"), "{error}");
    let image = push(&node, &registry, 1, true);

    write_handler(&node, &image, "");
    let _agent = node.start_with(&["--insecure-registry", &registry.name()]);
    is_refused(&node, "PullFailed", "refuses access to handlers/guest without credentials").await;
    write_handler(&node, &image, "    pullSecrets: [login]\n");
    is_refused(&node, "PullSecret", "pull secret default/login does not exist").await;
    let secret = |login: &str| {
        let auths = json!({"auths": {registry.name(): {"auth": BASE64_STANDARD.encode(login)}}});
        let data = json!({".dockerconfigjson": auths.to_string()});
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "login"},
            "type": "kubernetes.io/dockerconfigjson", "stringData": data,
        })
    };
    node.write("manifests/login.yaml", &secret("user:wrong").to_string());
    is_refused(&node, "PullFailed", "with the credentials for it").await;
    node.write("manifests/login.yaml", &secret(LOGIN).to_string());
    runs(&node, 1).await;
}

#[tokio::test] // rule 75, threat 26
async fn only_signed_images_run_where_keys_are_named() {
    let Some(mut registry) = Registry::start(false) else { return };
    let node = Node::new();
    let image = push(&node, &registry, 1, false);
    let digest = image.split_once('@').unwrap().1;
    let keys = [KeyPair::generate_for(&rcgen::PKCS_ED25519), KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)];
    let [trusted, other] = keys.map(Result::unwrap);
    let signed_by = |name: &str, key: &KeyPair| {
        let pem = key.public_key_pem().replace('\n', "\n          ");
        format!("    signature:\n      keys:\n      - name: {name}\n        publicKey: |\n          {pem}\n")
    };
    let flags = ["--insecure-registry", &registry.name()];
    write_handler(&node, &image, &signed_by("release", &trusted));
    let agent = node.start_with(&flags);
    is_refused(&node, "SignatureInvalid", "is not signed; it has to be with key 'release'").await;
    registry.sign("handlers/guest", digest, &other);
    is_refused(&node, "SignatureInvalid", "is valid for key 'release'").await;
    registry.sign("handlers/guest", digest, &trusted);
    runs(&node, 1).await;

    // The signature is kept as well.
    registry.stop();
    agent.kill();
    let agent = node.start_with(&flags);
    agent.wait_for_log("handler ready handler=\"guest\"").await; // the status may be that of the former agent
    runs(&node, 1).await;

    // Another image whose registry is away leaves it running, and a key that is withdrawn stops it all the same.
    let unknown = image.replace(digest, &digest_of(b"unknown"));
    write_handler(&node, &unknown, &signed_by("release", &trusted));
    let outage = is_refused(&node, "PullFailed", "cannot reach").await;
    assert_eq!(outage.digest, Some(digest_of(&version(1))[7..].to_owned()), "it runs on");
    write_handler(&node, &image, &signed_by("release", &trusted));
    runs(&node, 1).await;
    write_handler(&node, &image, &signed_by("next", &other));
    let withheld = is_refused(&node, "PullFailed", "cannot reach").await;
    assert_eq!((withheld.state, withheld.digest), (HandlerState::Refused, None), "it does not run on");
    registry.restart();
    is_refused(&node, "SignatureInvalid", "is valid for key 'next'").await;
    registry.sign("handlers/guest", digest, &other);
    runs(&node, 1).await;

    let image = push(&node, &registry, 2, false);
    let signature = sign_with_openssl_alone(&node, &registry, image.split_once('@').unwrap().1);
    write_handler(&node, &image, &signature);
    runs(&node, 2).await;
}

/// Signs an image by the recipe of the documentation, and returns the lines with the key for its DiscoveryHandler.
fn sign_with_openssl_alone(node: &Node, registry: &Registry, digest: &str) -> String {
    let page = include_str!("../docs/how-to/components-as-images.md");
    let blocks =
        page.split("```sh no-run: run by oci, with a registry\n").skip(1).filter_map(|rest| rest.split("```").next());
    let recipe: Vec<&str> = blocks.filter(|block| block.contains("openssl")).collect();
    let repository = format!("http://{}/v2/handlers/guest", registry.name());
    let fill = |line: &str| match line.split_once('=') {
        Some(("REPOSITORY", _)) => format!("REPOSITORY={repository}\n"),
        Some(("DIGEST", _)) => format!("DIGEST={digest}\n"),
        _ => format!("{line}\n"),
    };
    let script: String = recipe.concat().lines().map(fill).collect();
    let directory = node.path("signing");
    fs::create_dir(&directory).unwrap();
    let output = Command::new("sh").args(["-euc", &script]).current_dir(&directory).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let pem = fs::read_to_string(directory.join("release.pub")).unwrap().replace('\n', "\n          ");
    format!("    signature:\n      keys:\n      - name: release\n        publicKey: |\n          {pem}\n")
}

#[tokio::test] // rule 74
async fn image_without_a_handler_in_it_is_refused() {
    let component = b"\0asm\x0d\0\x01\0"; // a component with nothing in it
    let fake = fake(Image::of(component)).await;
    let node = Node::new();
    let image = format!("{}/a@{}", fake.name(), digest_of(Image::of(component).manifest.as_bytes()));
    write_handler(&node, &image, "");
    let _agent = node.start_with(&["--insecure-registry", &fake.name()]);
    is_refused(&node, "Invalid", "akri:discovery").await;
    let requests = fake.requests().len();
    assert_eq!(requests, 2, "a manifest and a component: {:?}", fake.requests());
    let (mut pull, file) = (Command::new(akri()), node.path("pulled.wasm"));
    pull.args(["handler", "pull", &image, "--insecure-registry", &fake.name(), "--output"]).arg(&file);
    pull.env("XDG_CACHE_HOME", compiled_components());
    let output = tokio::task::spawn_blocking(move || pull.output().unwrap()).await.unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        error.starts_with("error: the image is not stored, since an agent would refuse its component: "),
        "{error}"
    );
    assert!(!file.exists());
}

#[tokio::test] // rule 74
async fn pushed_component_is_pulled_into_a_file() {
    let Some(registry) = Registry::start(false) else { return };
    let node = Node::new();
    let image = push(&node, &registry, 3, false);
    let (file, tagged) = (node.path("pulled.wasm"), format!("{}/handlers/guest:3", registry.name()));
    for reference in [&image, &tagged] {
        let output = handler(&node, &registry, &["pull", reference, "--output", file.to_str().unwrap()], false);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!((image_in(&output), fs::read(&file).unwrap()), (image.clone(), version(3)));
    }
    let missing = format!("{}/handlers/none:1", registry.name());
    let output = handler(&node, &registry, &["pull", &missing], false);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(error, format!("error: {missing} does not exist\n"));
    let text = built_components().join("udev.yaml");
    let output = handler(&node, &registry, &["push", text.to_str().unwrap(), &tagged], false);
    assert!(!output.status.success(), "no component");
    let elsewhere = node.akri(&["handler", "pull", "r.example/a:1", "--insecure-registry", "r.example"]);
    let error = String::from_utf8_lossy(&elsewhere.stderr).into_owned();
    assert!(error.contains("only a registry of this machine"), "{error}");

    // With the handler's object, as it is packed: what is printed has its grants.
    let pushed = fs::read(node.path("pushed.wasm")).unwrap();
    node.write("guest.wasm", "");
    fs::write(node.path("guest.wasm"), pushed).unwrap();
    let object = "apiVersion: akri.sh/v0\nkind: DiscoveryHandler\nmetadata: {name: mine}\nspec:\n  name: guest\n  component: {file: FILE}\n  \
                  grants: {tcp: [{networks: [192.0.2.0/24], ports: [502]}]}\n";
    let push = |file: &str| {
        node.write("object.yaml", &object.replace("FILE", file));
        let paths = ["guest.wasm", "object.yaml"].map(|name| node.path(name).display().to_string());
        handler(&node, &registry, &["push", &paths[0], &tagged, "--handler-object", &paths[1]], false)
    };
    let output = push("guest.wasm");
    let printed = String::from_utf8(output.stdout.clone()).unwrap();
    assert_eq!(image_in(&output), image, "{printed}{}", String::from_utf8_lossy(&output.stderr));
    assert!(
        printed.contains("name: mine") && printed.contains("192.0.2.0/24") && !printed.contains("file:"),
        "{printed}"
    );
    assert!(!push("other.wasm").status.success(), "the object is of another component");

    // Without an agent, too.
    node.write_configuration("guest", "guest", "      devices:1\n", "");
    write_handler(&node, &image, "");
    let text =
        ["manifests/guest.yaml", "components/guest.yaml"].map(|name| fs::read_to_string(node.path(name)).unwrap());
    node.remove("components/guest.yaml");
    let found = node.discover(&text.join("\n---\n"), &["--insecure-registry", &registry.name()]);
    assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
}

/// The client of the ORAS project.
#[tokio::test] // rule 74
async fn oras_pulls_what_was_pushed_and_the_other_way_round() {
    let Some(registry) = Registry::start(false) else { return };
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let python = root.join("../target/peers/python/bin/python");
    if !root.join("../target/peers/python/installed").exists() {
        return skip("no oras: run 'make peers'");
    }
    let node = Node::new();
    let oras = |arguments: &[&str]| {
        let output = Command::new(&python).arg(root.join("peers/oras_client.py")).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let (image, directory) = (push(&node, &registry, 4, false), node.path("oras"));
    fs::create_dir(&directory).unwrap();
    let pulled = oras(&["pull", &image, directory.to_str().unwrap()]);
    assert_eq!(fs::read(pulled.trim()).unwrap(), version(4));

    fs::write(directory.join("component.wasm"), version(5)).unwrap();
    fs::write(directory.join("config.json"), r#"{"architecture":"wasm","os":"wasip2","layerDigests":[]}"#).unwrap();
    let reference = format!("{}/handlers/other:5", registry.name());
    oras(&["push", &reference, directory.to_str().unwrap(), directory.join("config.json").to_str().unwrap()]);
    let file = node.path("pulled.wasm");
    let output = handler(&node, &registry, &["pull", &reference, "--output", file.to_str().unwrap()], false);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::read(&file).unwrap(), version(5));
}
