//! Starting and stopping the cluster. Its state is in its folder and its control groups, so that any process can find,
//! use and end it.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rustix::process::geteuid;

use super::cgroup::{self, Group};
use super::component::Component;
use super::control_plane::ControlPlane;
use super::layout::Layout;
use super::machine::Machine;
use super::worker::Worker;
use super::{certificates, forward, image, programs, ready};

/// Time for a component to become ready.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// The parts of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// The control plane.
    Control,
    /// The control plane and two nodes.
    Nodes,
}

/// The cluster of this project's `target/`.
#[derive(Debug, Clone)]
pub struct Cluster {
    layout: Layout,
    pub control: ControlPlane,
    pub nodes: [Worker; 2],
}

/// Marks the cluster as used while it lives.
#[derive(Debug)]
pub struct Use {
    _lock: File,
}

impl Cluster {
    /// Returns a handle; nothing is started.
    pub fn new() -> Self {
        let layout = Layout::new();
        let control = ControlPlane::new(&layout, &helper());
        Self { nodes: [0, 1].map(|number| Worker::new(&layout, number)), control, layout }
    }

    /// Returns why there can't be a cluster on this machine.
    pub fn obstacle(&self) -> Option<String> {
        if !geteuid().is_root() {
            return Some("a cluster needs root".to_owned());
        }
        let built = Layout::built();
        let missing = match programs::release() {
            None if !built.join("recipe").exists() => Some("Kubernetes"),
            None => None,
            Some(_) => programs::missing(),
        };
        if let Some(missing) = missing {
            let release =
                programs::release().map(|release| format!(" or in {}", release.display())).unwrap_or_default();
            let remedy = "run 'make kubernetes', on Debian bookworm";
            return Some(format!("no {missing} in {}{release}: {remedy}", built.display()));
        }
        cgroup::check().err().map(|error| format!("{error:#}"))
    }

    /// Returns the administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.layout.kubeconfig("admin")
    }

    /// Returns the logs of all components.
    pub fn logs(&self) -> PathBuf {
        self.layout.logs()
    }

    /// Starts what does not run, and waits until all is ready. Returns whether nothing ran before.
    pub fn up(&self, extent: Extent) -> anyhow::Result<bool> {
        let described = programs::describe().context("the programs of KUBERNETES=DIR")?;
        let _starting = self.lock("starting")?;
        let fresh = !self.control.machine.is_there();
        if fresh {
            eprint!("{described}");
            self.end()?;
            remove(&self.layout.logs())?;
            self.prepare()?;
        }
        let started = self.start(extent);
        if fresh && started.is_err() {
            self.end()?; // a partial cluster is useless; its logs are kept
        }
        started.map(|()| fresh)
    }

    fn start(&self, extent: Extent) -> anyhow::Result<()> {
        self.control.machine.create_control()?;
        self.control.api().iter().try_for_each(|component| component.start())?;
        if extent == Extent::Control {
            return self.finish_control();
        }
        let new: Vec<&Worker> = self.nodes.iter().filter(|node| !node.machine.is_there()).collect();
        self.nodes.iter().try_for_each(|node| node.start(&self.control.machine))?; // they wait for the API
        self.finish_control()?;
        self.load_base(&new)?;
        self.finish_nodes()
    }

    /// Stops the control plane, runs this with the directory of etcd's data, and starts everything again. Kubernetes' own
    /// controllers don't notice that a backup was restored while they run.
    pub fn with_data(&self, then: impl FnOnce(&Path)) -> anyhow::Result<()> {
        let control = &self.control;
        let components = [&control.scheduler, &control.controller_manager, &control.api_server, &control.etcd];
        components.into_iter().for_each(Component::stop);
        then(&control.data());
        self.up(Extent::Nodes).map(drop)
    }

    /// Waits until nobody uses the cluster, ends it and removes everything but the logs.
    pub fn down(&self) -> anyhow::Result<()> {
        let _unused = self.lock("used")?;
        let _starting = self.lock("starting")?;
        self.end()
    }

    /// Starts a cluster for stories if there is none, and a process that ends it when it is no longer used. A cluster
    /// started by hand is left running.
    pub fn join(&self, extent: Extent) -> anyhow::Result<Use> {
        let used = self.lock_shared("used")?;
        if self.up(extent)? {
            let mut keeper = Command::new(helper());
            keeper.arg("down").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            std::os::unix::process::CommandExt::process_group(&mut keeper, 0);
            keeper.spawn().context("cannot start what ends the cluster")?;
        }
        Ok(Use { _lock: used })
    }

    /// Waits for an exclusive lock.
    pub(super) fn lock(&self, name: &str) -> anyhow::Result<File> {
        let file = self.lock_file(name)?;
        file.lock().with_context(|| format!("cannot lock {name}"))?;
        Ok(file)
    }

    /// Waits for a shared lock.
    pub(super) fn lock_shared(&self, name: &str) -> anyhow::Result<File> {
        let file = self.lock_file(name)?;
        file.lock_shared().with_context(|| format!("cannot lock {name}"))?;
        Ok(file)
    }

    fn lock_file(&self, name: &str) -> anyhow::Result<File> {
        fs::create_dir_all(self.layout.root())?;
        let path = self.layout.root().join(format!("{name}.lock"));
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        file.with_context(|| format!("cannot open {}", path.display()))
    }

    /// Loads the project's image on the nodes that do not have it. A process makes it once.
    pub fn load_akri(&self) -> anyhow::Result<()> {
        static ARCHIVE: Mutex<Option<PathBuf>> = Mutex::new(None);
        let mut archive = ARCHIVE.lock().unwrap_or_else(PoisonError::into_inner);
        if !archive.as_ref().is_some_and(|archive| archive.exists()) {
            *archive = Some(image::make_akri(&self.layout)?);
        }
        archive.iter().try_for_each(|archive| self.nodes.iter().try_for_each(|node| node.load_once(archive)))
    }

    /// Forwards connections to the API server until the process ends.
    pub fn forward(&self) -> anyhow::Result<()> {
        forward::run(self.port()?, self.control.machine.pid()?)
    }

    /// Returns a command that runs another one in the network of the cluster.
    pub fn entrance(&self) -> anyhow::Result<Vec<String>> {
        self.control.machine.entrance()
    }

    fn group(&self) -> Group {
        Group::of(self.layout.root())
    }

    fn end(&self) -> anyhow::Result<()> {
        self.group().kill()?;
        self.group().remove()?;
        remove(&self.layout.run())
    }

    fn prepare(&self) -> anyhow::Result<()> {
        fs::create_dir_all(self.layout.run())?;
        fs::create_dir_all(self.layout.logs())?;
        let machines: Vec<Machine> = self.nodes.iter().map(|node| node.machine.clone()).collect();
        certificates::make(&self.layout, &machines, self.choose_port()?)
    }

    fn finish_control(&self) -> anyhow::Result<()> {
        self.wait_for("the API server", &self.control.api(), || ready::api_answers(&self.kubeconfig()))?;
        let controllers = self.control.controllers();
        controllers.iter().try_for_each(|component| component.start())?; // they give up without an API server
        self.wait_for("the controller manager", &controllers, || ready::service_accounts_work(&self.kubeconfig()))
    }

    fn load_base(&self, nodes: &[&Worker]) -> anyhow::Result<()> {
        if nodes.is_empty() {
            return Ok(());
        }
        let archives = image::make_base(&self.layout)?;
        nodes.iter().try_for_each(|node| archives.iter().try_for_each(|archive| node.load(archive)))
    }

    fn finish_nodes(&self) -> anyhow::Result<()> {
        self.nodes.iter().try_for_each(|node| {
            let needs = [&node.containerd, &node.kubelet];
            self.wait_for(node.name(), &needs, || ready::node_is_ready(&self.kubeconfig(), node.name()))
        })
    }

    fn wait_for(
        &self,
        what: &str,
        needs: &[&Component],
        observe: impl Fn() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        while let Err(error) = observe() {
            needs.iter().try_for_each(|component| component.check())?;
            ensure!(Instant::now() < deadline, "{what} is not ready: {error:#}; see {}", self.layout.logs().display());
            sleep(Duration::from_millis(200));
        }
        Ok(())
    }

    /// Returns a free port of this machine, and stores it for the next start.
    fn choose_port(&self) -> anyhow::Result<u16> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        fs::write(self.layout.run().join("port"), port.to_string())?;
        Ok(port)
    }

    fn port(&self) -> anyhow::Result<u16> {
        Ok(fs::read_to_string(self.layout.run().join("port")).context("there is no cluster")?.parse()?)
    }
}

/// Returns the helper program, which outlives the stories.
fn helper() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let is_it = own.file_name().is_some_and(|name| name == "test-cluster");
    if is_it { own } else { own.parent().and_then(Path::parent).unwrap_or(&own).join("test-cluster") }
}

fn remove(directory: &Path) -> anyhow::Result<()> {
    if directory.exists() {
        fs::remove_dir_all(directory).with_context(|| format!("cannot remove {}", directory.display()))?;
    }
    Ok(())
}
