//! A node among cameras.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::OnceLock;

use akri_api::Instance;
use serde_json::{Value, json};

use super::camera::Camera;
use super::{Farm, PORT, TLS_PORT};
use crate::namespace::Namespace;
use crate::node::{Agent, Node, akri, built_components};
use crate::skip::is_root;

/// A property of the Configuration: its name, its value and whether that comes from a Secret.
pub type Property<'a> = (&'a str, &'a str, bool);

/// The node, and a network with nothing on it but the node and cameras.
pub struct Place {
    pub node: Node,
    pub farm: Farm,
    pub namespace: Namespace,
}

impl Place {
    /// None, with the reason, where it can't be had.
    pub fn new(cameras: impl IntoIterator<Item = Camera>) -> Option<Self> {
        let namespace = is_root().then(Namespace::new)??;
        let farm = Farm::start(&namespace, cameras);
        let place = Self { node: Node::new(), farm, namespace };
        fs::copy(built_components().join("onvif.wasm"), place.node.path("components/onvif.wasm")).unwrap();
        ["udev", "debug-echo"].iter().for_each(|other| place.node.remove(&format!("components/{other}.yaml")));
        place.compile_once();
        place.write_handler("300ms", "");
        Some(place)
    }

    /// All these nodes use what was compiled for the first of them, which takes seconds, or on a busy machine longer than a
    /// story waits for anything.
    fn compile_once(&self) {
        static COMPILED: OnceLock<PathBuf> = OnceLock::new();
        let compiled = COMPILED.get_or_init(|| {
            let cache = built_components().join("../compiled-for-stories");
            let mut inspect = Command::new(akri());
            inspect.env("XDG_CACHE_HOME", &cache).args(["handler", "inspect"]);
            let inspected = inspect.arg(built_components().join("onvif.wasm")).output().unwrap();
            assert!(inspected.status.success(), "{inspected:?}");
            cache.join("akri")
        });
        fs::create_dir(self.node.path("state")).unwrap();
        symlink(compiled, self.node.path("state/compiled")).unwrap();
    }

    /// The handler, which may reach the loopback interface and nothing else; `tls` is lines of YAML of its HTTP grant.
    pub fn write_handler(&self, interval: &str, tls: &str) {
        let spec = format!(
            r#"  interval: {interval}
  grants:
    multicast:
    - {{group: 239.255.255.250, port: 3702, interfaces: [lo]}}
    http:
    - networks: [127.0.0.0/8]
      ports: [{PORT}, 8081, {TLS_PORT}]
{tls}    secrets: ["*"]
  limits: {{round: 60s}}
"#
        );
        self.node.write_handler("onvif", "onvif.wasm", &spec);
    }

    /// The Configuration `camera`, and the Secret that some of its properties come from; `details` is lines of YAML.
    pub fn write_cameras(&self, details: &str, properties: &[Property<'_>]) {
        let secret = |name: &str| json!({"secretKeyRef": {"name": "cameras", "key": name}});
        let property = |(name, value, from_secret): &Property<'_>| match from_secret {
            true => json!({"name": name, "valueFrom": secret(name)}),
            false => json!({"name": name, "value": value}),
        };
        let secrets: BTreeMap<&str, &str> =
            properties.iter().filter(|(.., secret)| *secret).map(|(name, value, _)| (*name, *value)).collect();
        let secret =
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "cameras"}, "stringData": secrets});
        self.node.write("manifests/secret.json", &secret.to_string());
        let details: String = details.lines().map(|line| format!("      {line}\n")).collect();
        let properties = Value::Array(properties.iter().map(property).collect());
        self.node.write_configuration(
            "camera",
            "onvif",
            &details,
            &format!("    discoveryProperties: {properties}\n  offlineGracePeriod: 1h\n"),
        );
    }

    /// Starts the agent on this network.
    pub fn start(&self) -> Agent {
        self.node.start_by(self.namespace.command(&akri()), &[])
    }

    /// `akri discover` of the Configuration, on this network.
    pub fn discover(&self, flags: &[&str]) -> Output {
        let mut command: Command = self.namespace.command(&akri());
        command.arg("discover").arg(self.node.path("manifests/camera.yaml"));
        command.arg("--components").arg(self.node.path("components")).args(flags).output().unwrap()
    }
}

/// A property of an Instance.
pub fn property<'a>(instance: &'a Instance, name: &str) -> Option<&'a str> {
    instance.spec.broker_properties.get(&format!("ONVIF_DEVICE_{name}")).map(String::as_str)
}
