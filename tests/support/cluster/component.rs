//! A program of the cluster, such as a kubelet, that stories stop and start.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rustix::process::{Pid, Signal};

use super::cgroup::Group;
use super::layout::Layout;
use super::machine::Machine;

/// How long a component has to end by itself.
const GRACE: Duration = Duration::from_secs(10);

/// Goes into a control group, given by its file of processes, and becomes a program there.
const ENTER: &str = r#"echo $$ >"$0" && exec "$@""#;

/// A program of the cluster. All that is known of it is in its control group: any process can handle it.
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
    /// On this machine itself.
    pub(super) fn new(layout: &Layout, name: &str, command: Vec<String>) -> Self {
        Self {
            name: name.to_owned(),
            group: Group::of(layout.root()).child(name),
            log: layout.logs().join(format!("{}.log", name.replace('/', "-"))),
            path: format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", layout.bin().display()),
            machine: None,
            command,
        }
    }

    /// The same on one of the cluster's machines.
    pub(super) fn on(self, machine: &Machine) -> Self {
        Self { machine: Some(machine.clone()), ..self }
    }

    /// What it is called.
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
        // Its end has to be taken note of, or a zombie stays for as long as this process does.
        std::thread::spawn(move || child.wait());
        Ok(())
    }

    /// A command in its control group and on its machine, without the program: nothing of this process's environment goes
    /// there, such as a proxy for HTTP, and no Ctrl-C of its terminal.
    pub(super) fn prepare(&self) -> anyhow::Result<Command> {
        self.group.create()?;
        let mut command = Command::new("/bin/sh");
        command.args(["-c", ENTER]).arg(self.group.door()?).env_clear().env("PATH", &self.path);
        command.env("AWS_EC2_METADATA_DISABLED", "true"); // the kubelet would ask who it is on that cloud
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        if let Some(machine) = &self.machine {
            command.args(machine.entrance()?);
        }
        Ok(command)
    }

    /// SIGTERM, and SIGKILL if that is not enough.
    pub fn stop(&self) {
        self.group.signal(Signal::TERM);
        let deadline = Instant::now() + GRACE;
        while self.is_running() && Instant::now() < deadline {
            sleep(Duration::from_millis(20));
        }
        self.kill();
    }

    /// `kill -9`.
    ///
    /// # Panics
    /// If it survives.
    pub fn kill(&self) {
        self.group.kill().unwrap();
    }

    /// Whether any process of it runs.
    pub fn is_running(&self) -> bool {
        !self.processes().is_empty()
    }

    /// Its processes.
    pub fn processes(&self) -> Vec<Pid> {
        self.group.processes()
    }

    /// What it has printed since the cluster was started.
    pub fn log(&self) -> String {
        fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// An error with its last words unless it runs.
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
