//! A node of the cluster: a kubelet with containerd, on a machine of its own.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::cgroup::Group;
use super::component::Component;
use super::layout::Layout;
use super::machine::Machine;
use super::programs;

/// Time for containerd to answer.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// The first versions whose kubelet has these in its file: the container runtime's socket, and that version 1 of control groups
/// will do.
const RUNTIME_IN_FILE: u32 = 27;
const CGROUPS_IN_FILE: u32 = 31;

const CONTAINERD: &str = "/run/containerd/containerd.sock";

/// A node.
#[derive(Debug, Clone)]
pub struct Worker {
    layout: Layout,
    pub(super) machine: Machine,
    pub containerd: Component,
    pub kubelet: Component,
    /// The network of its pods.
    pods: String,
}

impl Worker {
    /// Creates the node of that number, from 0.
    pub(super) fn new(layout: &Layout, number: u8) -> Self {
        let name = format!("node-{}", char::from(b'a' + number));
        let machine = Machine::new(layout, &name, Ipv4Addr::new(10, 200, 0, 11 + number));
        let component = |program: &str, flags: &[String]| {
            let command = [&[Layout::program(program).display().to_string()], flags].concat();
            Component::new(layout, &format!("{name}/{program}"), command).on(&machine)
        };
        let configuration = |file: &str| machine.directory().join(file).display().to_string();
        let mut kubelet = vec![
            format!("--config={}", configuration("kubelet.yaml")),
            format!("--kubeconfig={}", layout.kubeconfig(&name).display()),
            format!("--hostname-override={name}"),
            format!("--node-ip={}", machine.address()),
        ];
        if programs::current().minor < RUNTIME_IN_FILE {
            kubelet.push("--container-runtime=remote".to_owned());
            kubelet.push(format!("--container-runtime-endpoint=unix://{CONTAINERD}"));
        }
        Self {
            layout: layout.clone(),
            containerd: component("containerd", &[format!("--config={}", configuration("containerd.toml"))]),
            kubelet: component("kubelet", &kubelet),
            machine,
            pods: format!("10.244.{number}.0/24"),
        }
    }

    /// Returns the node's name.
    pub fn name(&self) -> &str {
        self.machine.name()
    }

    /// Returns the kubelet's root directory as this process sees it.
    pub fn kubelet_dir(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root/var/lib/kubelet", self.machine.pid().unwrap()))
    }

    /// Returns a command that runs a program on the node, with this process's environment. It ends with the cluster at
    /// the latest.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = self.visitor().prepare().unwrap();
        command.envs(std::env::vars_os()).arg(program);
        command
    }

    /// Returns the component for programs run by stories.
    fn visitor(&self) -> Component {
        Component::new(&self.layout, &format!("{}/visitor", self.name()), Vec::new()).on(&self.machine)
    }

    /// Starts what does not run of the node, without waiting for it. Kubelets of today end without a container runtime.
    pub(super) fn start(&self, control: &Machine) -> anyhow::Result<()> {
        if self.containerd.is_running() && self.kubelet.is_running() {
            return Ok(());
        }
        self.machine.create_node(control, &self.pods)?;
        for file in ["kubelet.yaml", "containerd.toml", "network.conflist"] {
            self.configure(file).with_context(|| format!("cannot configure {file} of {}", self.name()))?;
        }
        self.group().create()?;
        self.containerd.start()?;
        self.wait_for_containerd()?;
        self.kubelet.start()
    }

    fn group(&self) -> Group {
        Group::of(self.layout.root()).child(self.name())
    }

    fn configure(&self, file: &str) -> anyhow::Result<()> {
        let mut text = fs::read_to_string(Layout::sources().join(file))?;
        let path = |path: &Path| path.display().to_string();
        for (name, value) in [
            ("@ADDRESS@", self.machine.address().to_string()),
            ("@RUNC@", path(&Layout::program("runc"))),
            ("@PLUGINS@", path(&programs::network_plugins())),
            ("@CERTIFICATES@", path(&self.layout.certificates())),
            ("@CGROUP@", self.group().kubelet_name()),
            ("@CONFIGURATION@", path(self.machine.directory())),
            ("@NODE@", self.name().to_owned()),
            ("@PODS@", self.pods.clone()),
        ] {
            text = text.replace(name, &value);
        }
        if file == "kubelet.yaml" {
            text += &Self::newer_settings();
        }
        Ok(fs::write(self.machine.directory().join(file), text)?)
    }

    /// Returns the settings of the kubelet that older ones refuse.
    fn newer_settings() -> String {
        let minor = programs::current().minor;
        let runtime = format!("containerRuntimeEndpoint: unix://{CONTAINERD}\n");
        let settings = [(RUNTIME_IN_FILE, &*runtime), (CGROUPS_IN_FILE, "failCgroupV1: false\n")];
        settings.into_iter().filter(|(since, _)| minor >= *since).map(|(_, setting)| setting).collect()
    }

    /// Loads an image archive.
    pub(super) fn load(&self, archive: &Path) -> anyhow::Result<()> {
        self.wait_for_containerd()?;
        let archive = archive.to_str().context("not UTF-8")?;
        self.ctr(&["images", "import", archive]).with_context(|| format!("{}: cannot load {archive}", self.name()))
    }

    /// Loads an image archive, unless it was loaded since it was made.
    pub(super) fn load_once(&self, archive: &Path) -> anyhow::Result<()> {
        let (loaded, made) =
            (self.machine.directory().join("loaded"), format!("{:?}", archive.metadata()?.modified()?));
        if fs::read_to_string(&loaded).is_ok_and(|loaded| loaded == made) {
            return Ok(());
        }
        self.load(archive)?;
        Ok(fs::write(loaded, made)?)
    }

    fn wait_for_containerd(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        while let Err(error) = self.ctr(&["version"]) {
            self.containerd.check()?;
            ensure!(Instant::now() < deadline, "containerd of {} does not answer: {error:#}", self.name());
            sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    fn ctr(&self, arguments: &[&str]) -> anyhow::Result<()> {
        let mut command = self.visitor().prepare()?;
        command.arg(Layout::program("ctr")).args(["--address", CONTAINERD, "--namespace", "k8s.io"]);
        let output = command.args(arguments).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(())
    }
}
