//! A program of the cluster, such as a kubelet, that stories stop and start.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rustix::process::{Pid, Signal};

use super::cgroup::Group;
use super::layout::{self, Layout};
use super::machine::Machine;
use super::programs;

/// Time for a component to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);

/// Joins a control group, given by its file of processes, and executes a program there.
const ENTER: &str = r#"echo $$ >"$0" && exec "$@""#;

/// A program of the cluster. Its state is in its control group, so that any process can control it.
#[derive(Debug, Clone)]
pub struct Component {
    name: String,
    group: Group,
    log: PathBuf,
    path: String,
    machine: Option<Machine>,
    command: Vec<String>,
}

impl Component {
    /// Creates a component on this machine.
    pub(super) fn new(layout: &Layout, name: &str, command: Vec<String>) -> Self {
        Self {
            name: name.to_owned(),
            group: Group::of(layout.root()).child(name),
            log: layout.logs().join(format!("{}.log", name.replace('/', "-"))),
            path: search_path(),
            machine: None,
            command,
        }
    }

    /// Moves the component to one of the cluster's machines.
    pub(super) fn on(self, machine: &Machine) -> Self {
        Self { machine: Some(machine.clone()), ..self }
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Starts it, if it does not run.
    pub fn start(&self) -> anyhow::Result<()> {
        if self.is_running() {
            return Ok(());
        }
        let log = File::options().create(true).append(true).open(&self.log);
        let log = log.with_context(|| format!("cannot write {}", self.log.display()))?;
        let mut command = self.prepare()?;
        command.args(&self.command).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let mut child = command.spawn().with_context(|| format!("cannot start {}", self.name))?;
        while !self.is_running() {
            let ended = child.try_wait()?;
            ensure!(ended.is_none(), "{} has ended at once; see {}", self.name, self.log.display());
            sleep(Duration::from_millis(1)); // until it is in its group
        }
        // Without waiting for the child it would remain a zombie.
        std::thread::spawn(move || child.wait());
        Ok(())
    }

    /// Returns a command in the control group and on the machine. It inherits no environment, such as a proxy for HTTP,
    /// and gets no Ctrl-C of this terminal.
    pub(super) fn prepare(&self) -> anyhow::Result<Command> {
        self.group.create()?;
        let mut command = Command::new("/bin/sh");
        command.args(["-c", ENTER]).arg(self.group.door()?).env_clear().env("PATH", &self.path);
        command.envs(programs::release().map(|release| (programs::KUBERNETES, release)));
        command.envs(layout::other().map(|name| (layout::CLUSTER, name)));
        command.env("AWS_EC2_METADATA_DISABLED", "true"); // the kubelet would ask who it is on that cloud
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        if let Some(machine) = &self.machine {
            command.args(machine.entrance()?);
        }
        Ok(command)
    }

    /// Stops it with SIGTERM, or SIGKILL after a while.
    pub fn stop(&self) {
        self.group.signal(Signal::TERM);
        let deadline = Instant::now() + GRACE;
        while self.is_running() && Instant::now() < deadline {
            sleep(Duration::from_millis(20));
        }
        self.kill();
    }

    /// Kills it with SIGKILL.
    ///
    /// # Panics
    /// If it survives.
    pub fn kill(&self) {
        self.group.kill().unwrap();
    }

    /// Returns whether any process of it runs.
    pub fn is_running(&self) -> bool {
        !self.processes().is_empty()
    }

    /// Returns its processes.
    pub fn processes(&self) -> Vec<Pid> {
        self.group.processes()
    }

    /// Returns its output since the start of the cluster.
    pub fn log(&self) -> String {
        fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// Returns an error with its last output unless it runs.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        ensure!(
            self.is_running(),
            "{} has ended; its last words, of {}:\n{}",
            self.name,
            self.log.display(),
            self.tail()
        );
        Ok(())
    }

    fn tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }
}

/// Returns where programs find others: those of the release first.
fn search_path() -> String {
    let own = programs::release().into_iter().chain([Layout::built()]).map(|path| path.display().to_string());
    own.chain(["/usr/sbin:/usr/bin:/sbin:/bin".to_owned()]).collect::<Vec<_>>().join(":")
}
