//! Control groups track the processes of the cluster. Children of a component are in its group as well, and unlike
//! process ids a group can't come to mean other processes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use rustix::fs::{Access, access};
use rustix::process::{Pid, Signal, kill_process};

const MOUNT: &str = "/sys/fs/cgroup";

/// Time for processes to end after SIGKILL, and for groups to become removable.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// A control group, in all hierarchies of the machine.
#[derive(Debug, Clone)]
pub struct Group {
    name: PathBuf,
}

impl Group {
    /// Returns the group of everything that belongs to the cluster of this folder.
    pub fn of(folder: &Path) -> Self {
        let name = folder.to_string_lossy().trim_matches('/').replace('/', "-");
        Self { name: PathBuf::from(name) }
    }

    /// Returns a group within this one.
    pub fn child(&self, name: &str) -> Self {
        Self { name: self.name.join(name) }
    }

    /// Returns the name in the form the kubelet requires.
    pub fn kubelet_name(&self) -> String {
        format!("/{}", self.name.display())
    }

    /// Creates the group in all hierarchies, with the processors and memory of its parent.
    pub fn create(&self) -> anyhow::Result<()> {
        for hierarchy in hierarchies() {
            let mut above = hierarchy;
            for part in &self.name {
                let group = above.join(part);
                make(&group, &above).with_context(|| format!("cannot make the control group {}", group.display()))?;
                above = group;
            }
        }
        Ok(())
    }

    /// Returns the file to which a process writes its id to join the group.
    pub fn door(&self) -> anyhow::Result<PathBuf> {
        Ok(tracking()?.join(&self.name).join("cgroup.procs"))
    }

    /// Returns all processes in the group and in its children.
    pub fn processes(&self) -> Vec<Pid> {
        let mut found = Vec::new();
        if let Ok(hierarchy) = tracking() {
            collect(&hierarchy.join(&self.name), &mut found);
        }
        found
    }

    /// Sends a signal to all processes.
    pub fn signal(&self, signal: Signal) {
        for process in self.processes() {
            let _ = kill_process(process, signal); // it may have ended meanwhile
        }
    }

    /// Kills all processes at once.
    pub fn kill(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        while !self.processes().is_empty() {
            ensure!(Instant::now() < deadline, "processes of {} survive: {:?}", self.name.display(), self.processes());
            self.signal(Signal::KILL);
            sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Removes the empty group and its children from all hierarchies.
    pub fn remove(&self) -> anyhow::Result<()> {
        for hierarchy in hierarchies() {
            let group = hierarchy.join(&self.name);
            let deadline = Instant::now() + START_TIMEOUT;
            while let Err(error) = remove_tree(&group) {
                if Instant::now() > deadline {
                    bail!("cannot remove the control group {}: {error}", group.display());
                }
                sleep(Duration::from_millis(50)); // the kernel is not done with its processes
            }
        }
        Ok(())
    }
}

/// Returns the hierarchies of this machine: one with version 2, one per controller with version 1.
fn hierarchies() -> Vec<PathBuf> {
    let root = PathBuf::from(MOUNT);
    if root.join("cgroup.procs").exists() {
        return vec![root];
    }
    let entries = fs::read_dir(&root).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| !path.is_symlink() && path.join("cgroup.procs").exists()).collect()
}

/// Returns a hierarchy that contains every process.
fn tracking() -> anyhow::Result<PathBuf> {
    let all = hierarchies();
    let found = all.iter().find(|path| path.ends_with("cgroup") || path.ends_with("pids"));
    found.cloned().with_context(|| format!("no control groups below {MOUNT}"))
}

/// Returns whether groups can be created here, or why not.
pub(super) fn check() -> anyhow::Result<()> {
    let hierarchy = tracking()?;
    access(&hierarchy, Access::WRITE_OK)
        .with_context(|| format!("no control group can be created in {}", hierarchy.display()))
}

fn make(group: &Path, above: &Path) -> io::Result<()> {
    match fs::create_dir(group) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        result => result?,
    }
    for file in ["cpuset.cpus", "cpuset.mems"].map(|file| group.join(file)) {
        if fs::read_to_string(&file).is_ok_and(|text| text.trim().is_empty()) {
            let _ = fs::write(&file, fs::read(above.join(file.file_name().unwrap_or_default()))?); // version 2 inherits them
        }
    }
    // By default all pods together would weigh as much as one process, and starve beside busy stories.
    for (file, weight) in [("cpu.shares", "65536"), ("cpu.weight", "10000")] {
        if group.join(file).exists() {
            fs::write(group.join(file), weight)?;
        }
    }
    Ok(())
}

fn collect(group: &Path, found: &mut Vec<Pid>) {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    found.extend(text.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)));
    for below in groups_in(group) {
        collect(&below, found);
    }
}

fn remove_tree(group: &Path) -> io::Result<()> {
    for below in groups_in(group) {
        remove_tree(&below)?;
    }
    match fs::remove_dir(group) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn groups_in(group: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(group).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect()
}
