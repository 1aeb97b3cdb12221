//! A node with a kubelet, the agent as a process and any number of devices.

use std::fs;
use std::time::{Duration, Instant};

use akri_tests::kubelet::{Kubelet, View};
use akri_tests::node::{Agent, Node, built_components};

/// The scope of the devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    Local,
    Shared,
}

/// A node whose agent waits for Configurations.
pub(crate) struct Idle {
    pub(crate) node: Node,
    pub(crate) kubelet: Kubelet,
    agent: Agent,
}

impl Idle {
    pub(crate) async fn start(scope: Scope) -> Self {
        Self::start_every(scope, "10s").await
    }

    /// Starts a node with that interval of rounds.
    pub(crate) async fn start_every(scope: Scope, interval: &str) -> Self {
        let node = Node::new();
        let object = fs::read_to_string(built_components().join("debug-echo.yaml")).unwrap();
        let shared = scope == Scope::Shared;
        node.write("components/debug-echo.yaml", &format!("{object}  shared: {shared}\n  interval: {interval}\n"));
        fs::copy(built_components().join("udev.yaml"), node.path("components/udev.yaml")).unwrap();
        let kubelet = Kubelet::start(&node.path("kubelet"));
        let agent = node.start();
        agent.wait_for_log(r#"handler="debugEcho""#).await;
        Self { node, kubelet, agent }
    }

    /// Writes a Configuration with that many devices and waits until the kubelet can allocate each. Returns the
    /// duration.
    pub(crate) async fn register(&self, devices: usize) -> Duration {
        let names: Vec<String> = (0..devices).map(|number| format!("device-{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let start = Instant::now();
        self.node.write_echo("echo", 1, &names);
        self.wait_for(devices).await;
        start.elapsed()
    }

    /// Waits until the kubelet can allocate that many devices.
    pub(crate) async fn wait_for(&self, devices: usize) {
        self.kubelet.wait_for("all resources", |view| ready(view).count() == devices).await;
    }

    /// Returns the agent's process.
    pub(crate) fn pid(&self) -> u32 {
        self.agent.pid()
    }

    /// Returns the resources created by [`Idle::register`].
    pub(crate) fn resources(&self) -> Vec<String> {
        self.kubelet.view(|view| ready(view).cloned().collect())
    }
}

fn ready(view: &View) -> impl Iterator<Item = &String> {
    let of_devices = view.resources.iter().filter(|(name, _)| name.starts_with("akri.sh/echo-"));
    of_devices.filter(|(_, resource)| resource.connected && resource.allocatable() == 1).map(|(name, _)| name)
}
