//! etcd, the API server, the controller manager and the scheduler, on a machine of their own.

use std::path::{Path, PathBuf};

use super::component::Component;
use super::layout::Layout;
use super::machine::{CONTROL, Machine};

/// The Service network; its first address is that of the API server.
const SERVICES: &str = "10.96.0.0/16";

/// The components of the control plane.
#[derive(Debug, Clone)]
pub struct ControlPlane {
    pub(super) machine: Machine,
    pub etcd: Component,
    pub api_server: Component,
    pub controller_manager: Component,
    pub scheduler: Component,
    /// Forwards connections from outside of the cluster's network to the API server.
    pub(super) forward: Component,
}

impl ControlPlane {
    pub(super) fn new(layout: &Layout, helper: &Path) -> Self {
        let machine = Machine::new(layout, "control", CONTROL);
        let component = |name: &str, program: &str, flags: Vec<String>| {
            let program = Layout::program(program).display().to_string();
            Component::new(layout, &format!("control/{name}"), [vec![program], flags].concat()).on(&machine)
        };
        Self {
            etcd: component("etcd", "etcd", etcd(&machine)),
            api_server: component("api-server", "kube-apiserver", api_server(layout)),
            controller_manager: component("controller-manager", "kube-controller-manager", controller_manager(layout)),
            scheduler: component("scheduler", "kube-scheduler", scheduler(layout)),
            forward: Component::new(
                layout,
                "control/forward",
                vec![helper.display().to_string(), "forward".to_owned()],
            ),
            machine,
        }
    }

    /// Returns the directory of etcd's data.
    pub(super) fn data(&self) -> PathBuf {
        self.machine.directory().join("etcd")
    }

    /// Returns the components of the API, in the order of their start.
    pub(super) fn api(&self) -> [&Component; 3] {
        [&self.etcd, &self.api_server, &self.forward]
    }

    /// Returns the components that need the API.
    pub(super) fn controllers(&self) -> [&Component; 2] {
        [&self.controller_manager, &self.scheduler]
    }
}

fn flags<const N: usize>(pairs: [(&str, &str); N]) -> Vec<String> {
    pairs.iter().map(|(flag, value)| format!("--{flag}={value}")).collect()
}

fn etcd(machine: &Machine) -> Vec<String> {
    let data = machine.directory().join("etcd").display().to_string();
    // Data does not have to survive the machine.
    flags([("data-dir", &data), ("unsafe-no-fsync", "true"), ("logger", "zap"), ("log-level", "warn")])
}

fn api_server(layout: &Layout) -> Vec<String> {
    let file = |name: &str| layout.certificates().join(name).display().to_string();
    flags([
        ("etcd-servers", "http://127.0.0.1:2379"),
        ("secure-port", "443"),
        ("advertise-address", &CONTROL.to_string()),
        ("service-cluster-ip-range", SERVICES),
        // There is no kube-proxy: the API server calls webhooks by the addresses of pods.
        ("enable-aggregator-routing", "true"),
        ("tls-cert-file", &file("api-server.crt")),
        ("tls-private-key-file", &file("api-server.key")),
        ("client-ca-file", &file("ca.crt")),
        ("kubelet-certificate-authority", &file("ca.crt")),
        ("kubelet-client-certificate", &file("admin.crt")),
        ("kubelet-client-key", &file("admin.key")),
        ("kubelet-preferred-address-types", "InternalIP"),
        ("service-account-issuer", "https://kubernetes.default.svc"),
        ("service-account-key-file", &file("service-accounts.pub")),
        ("service-account-signing-key-file", &file("service-accounts.key")),
        ("authorization-mode", "Node,RBAC"),
        ("enable-admission-plugins", "NodeRestriction"),
        ("anonymous-auth", "false"),
        ("allow-privileged", "true"),
    ])
}

fn controller_manager(layout: &Layout) -> Vec<String> {
    let file = |name: &str| layout.certificates().join(name).display().to_string();
    flags([
        ("kubeconfig", &file("controller-manager.kubeconfig")),
        ("use-service-account-credentials", "true"),
        ("service-account-private-key-file", &file("service-accounts.key")),
        ("root-ca-file", &file("ca.crt")),
        ("leader-elect", "false"),
        ("bind-address", "127.0.0.1"),
    ])
}

fn scheduler(layout: &Layout) -> Vec<String> {
    let kubeconfig = layout.kubeconfig("scheduler").display().to_string();
    flags([("kubeconfig", &kubeconfig), ("leader-elect", "false"), ("bind-address", "127.0.0.1")])
}
