//! A node with cameras on its network.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Output};
use std::sync::OnceLock;

use akri_api::Instance;
use serde_json::{Value, json};

use super::camera::Camera;
use super::{Farm, PORT, TLS_PORT};
use crate::namespace::Namespace;
use crate::node::{Agent, Node, akri, built_components};

/// A property of the Configuration: name, value, and whether it is from a Secret.
pub type Property<'a> = (&'a str, &'a str, bool);

/// A node in an isolated network with cameras.
pub struct Place {
    pub node: Node,
    pub farm: Farm,
    pub namespace: Namespace,
}

impl Place {
    /// Creates the place. `None`, with the reason printed, where that is not possible.
    pub fn new(cameras: impl IntoIterator<Item = Camera>) -> Option<Self> {
        let namespace = Namespace::new()?;
        let farm = Farm::start(&namespace, cameras);
        let place = Self { node: Node::new(), farm, namespace };
        fs::copy(built_components().join("onvif.wasm"), place.node.path("components/onvif.wasm")).unwrap();
        ["udev", "debug-echo"].iter().for_each(|other| place.node.remove(&format!("components/{other}.yaml")));
        place.compile_once();
        place.write_handler("300ms", "");
        Some(place)
    }

    /// Compiles the handler, which takes seconds, before a story waits for anything.
    fn compile_once(&self) {
        static COMPILED: OnceLock<()> = OnceLock::new();
        COMPILED.get_or_init(|| {
            let component = built_components().join("onvif.wasm");
            let inspected = self.node.akri(&["handler", "inspect", component.to_str().unwrap()]);
            assert!(inspected.status.success(), "{inspected:?}");
        });
    }

    /// Writes the handler with a grant for loopback only; `tls` is lines of YAML of its HTTP grant.
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

    /// Writes the Configuration `camera`, and the Secret with some of its properties; `details` is lines of YAML.
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

    /// Starts the agent in this network.
    pub fn start(&self) -> Agent {
        self.node.start_by(self.namespace.command(&akri()), &[])
    }

    /// Runs `akri discover` with the Configuration in this network.
    pub fn discover(&self, flags: &[&str]) -> Output {
        let mut command: Command = self.namespace.command(&akri());
        command.arg("discover").arg(self.node.path("manifests/camera.yaml"));
        command.arg("--components").arg(self.node.path("components")).args(flags).output().unwrap()
    }
}

/// Returns a property of an Instance.
pub fn property<'a>(instance: &'a Instance, name: &str) -> Option<&'a str> {
    instance.spec.broker_properties.get(&format!("ONVIF_DEVICE_{name}")).map(String::as_str)
}
