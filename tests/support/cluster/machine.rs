//! A machine of the cluster: a network namespace and a mount namespace, so that each node has its own
//! `/var/lib/kubelet`, `/run` and ports, isolated from this machine. The namespaces end with their last process.

use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::component::Component;
use super::layout::Layout;

/// Time for the namespaces to be created.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// The address of the control plane in the shared network.
pub(super) const CONTROL: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 1);

/// The first address of the Services, at which pods find the API server. It is assigned to the control plane's machine,
/// so that no kube-proxy is needed.
pub(super) const API_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);

/// A pair of namespaces.
#[derive(Debug, Clone)]
pub struct Machine {
    name: String,
    address: Ipv4Addr,
    directory: PathBuf,
    keeper: Box<Component>,
}

impl Machine {
    pub(super) fn new(layout: &Layout, name: &str, address: Ipv4Addr) -> Self {
        let directory = layout.run().join(name);
        let script = Layout::sources().join("machine.sh");
        let [script, files] = [&script, &directory].map(|path| path.display().to_string());
        let command = ["unshare", "--mount", "--net", "--propagation", "slave", "/bin/sh", &script, &files];
        let command = command.map(str::to_owned).to_vec();
        let keeper = Component::new(layout, &format!("{name}/machine"), command);
        Self { name: name.to_owned(), address, directory, keeper: Box::new(keeper) }
    }

    /// Returns its name, which is the node's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its address in the cluster's network.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Returns the directory of its files, seen from outside.
    pub(super) fn directory(&self) -> &PathBuf {
        &self.directory
    }

    /// Returns whether it exists.
    pub(super) fn is_there(&self) -> bool {
        self.keeper.is_running()
    }

    /// Creates the machine of the control plane, which is also switch and router of the others.
    pub(super) fn create_control(&self) -> anyhow::Result<()> {
        self.create(|| {
            self.ip("link add cluster type bridge")?;
            self.ip(&format!("address add {CONTROL}/24 dev cluster"))?;
            self.ip("link set cluster up")?;
            self.ip(&format!("address add {API_SERVICE}/32 dev lo"))
        })
    }

    /// Creates and connects the machine of a node.
    pub(super) fn create_node(&self, control: &Self, pods: &str) -> anyhow::Result<()> {
        let (name, address) = (&self.name, self.address);
        self.create(|| {
            control.ip(&format!("link add {name} type veth peer name eth0 netns {}", self.pid()?))?;
            control.ip(&format!("link set {name} up master cluster"))?;
            control.ip(&format!("route replace {pods} via {address}"))?;
            self.ip(&format!("address add {address}/24 dev eth0"))?;
            self.ip("link set eth0 up")?;
            self.ip(&format!("route add default via {CONTROL}"))
        })
    }

    /// Creates and connects a machine, or neither. An existing one is unchanged.
    fn create(&self, connect: impl Fn() -> anyhow::Result<()>) -> anyhow::Result<()> {
        if self.is_there() {
            return Ok(());
        }
        let created = self.make().and_then(|()| connect());
        if created.is_err() {
            self.keeper.kill();
        }
        created
    }

    fn make(&self) -> anyhow::Result<()> {
        fs::create_dir_all(&self.directory).with_context(|| format!("cannot make {}", self.directory.display()))?;
        let ready = self.directory.join("ready");
        self.keeper.start()?;
        let deadline = Instant::now() + START_TIMEOUT;
        while !ready.exists() {
            sleep(Duration::from_millis(10));
            self.keeper.check().or_else(|error| if ready.exists() { Ok(()) } else { Err(error) })?;
            ensure!(Instant::now() < deadline, "the machine {} is not there after {START_TIMEOUT:?}", self.name);
        }
        Ok(())
    }

    /// Returns a command that runs another one on the machine.
    pub(super) fn entrance(&self) -> anyhow::Result<Vec<String>> {
        let pid = self.pid()?.to_string();
        Ok(["nsenter", "--mount", "--net", "--target", &pid, "--"].map(str::to_owned).to_vec())
    }

    pub(super) fn pid(&self) -> anyhow::Result<i32> {
        let processes = self.keeper.processes();
        let keeper = processes.first().with_context(|| format!("the machine {} does not exist", self.name))?;
        Ok(keeper.as_raw_nonzero().get())
    }

    /// Runs `ip` on the machine.
    fn ip(&self, arguments: &str) -> anyhow::Result<()> {
        let [program, entrance @ ..] = &*self.entrance()? else { return Ok(()) };
        let mut command = std::process::Command::new(program);
        let output = command.args(entrance).arg("ip").args(arguments.split(' ')).output();
        let output = output.context("cannot run nsenter, of util-linux")?;
        let printed = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "'ip {arguments}' on {}: {}", self.name, printed.trim());
        Ok(())
    }
}
