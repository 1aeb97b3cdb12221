//! The host's tree of cgroups: which pods have containers that run. Names of directories tell it; no file is read.
//!
//! The kubelet makes a cgroup for each pod, below `kubepods` or `kubepods.slice`: `pod<UID>` with the cgroupfs driver,
//! `kubepods-burstable-pod<UID>.slice` with systemd's, where the UID has `_` for `-` (upstream:
//! `pkg/kubelet/cm/pod_container_manager_linux.go`, `cgroup_manager_linux.go`). Each container has a cgroup in it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Depth below the root at which the kubelet's cgroups are found: below a controller with version 1, and below cgroups that the
/// kubelet is told to use (`--cgroup-root`).
const MAX_DEPTH: usize = 4;

/// Depth below those at which pods are found: in the one of their quality of service.
const MAX_POD_DEPTH: usize = 2;

/// Maximum number of directories that are looked at.
const MAX_DIRECTORIES: usize = 50_000;

/// Controllers of version 1; one is enough, since the kubelet makes the cgroup of a pod in each.
const CONTROLLERS: [&str; 4] = ["pids", "memory", "cpu", "systemd"];

/// Returns the UIDs of the pods whose cgroups have cgroups of containers in them. Blocks on the file system.
///
/// # Errors
/// If the tree can't be read, has no cgroups of the kubelet, or more than 50,000 directories. That says nothing about what runs.
pub fn running_pods(root: &Path) -> io::Result<BTreeSet<String>> {
    let mut walk = Walk { left: MAX_DIRECTORIES, has_kubelet: false, running: BTreeSet::new() };
    let controllers = CONTROLLERS.iter().map(|name| root.join(name)).find(|controller| controller.is_dir());
    walk.find_kubelet(&controllers.unwrap_or_else(|| root.to_owned()), MAX_DEPTH)?;
    if !walk.has_kubelet {
        let message = format!("'{}' has no cgroups of a kubelet", root.display());
        return Err(io::Error::new(io::ErrorKind::NotFound, message));
    }
    Ok(walk.running)
}

struct Walk {
    /// The number of directories that may still be looked at.
    left: usize,
    /// Set if there are cgroups that a kubelet has its pods in.
    has_kubelet: bool,
    /// The UIDs of pods with containers.
    running: BTreeSet<String>,
}

impl Walk {
    fn find_kubelet(&mut self, parent: &Path, depth: usize) -> io::Result<()> {
        for (name, path) in self.directories(parent)? {
            let is_kubelet = name == "kubepods" || name.ends_with("kubepods.slice");
            if is_kubelet {
                self.has_kubelet = true;
                self.find_pods(&path, MAX_POD_DEPTH)?;
            } else if depth > 1 {
                self.find_kubelet(&path, depth - 1)?;
            }
        }
        Ok(())
    }

    fn find_pods(&mut self, parent: &Path, depth: usize) -> io::Result<()> {
        for (name, path) in self.directories(parent)? {
            let Some(uid) = pod_uid(&name) else {
                if depth > 1 {
                    self.find_pods(&path, depth - 1)?;
                }
                continue;
            };
            // A pod whose cgroup can't be read may run: nothing is known then.
            if !self.directories(&path)?.is_empty() {
                self.running.insert(uid);
            }
        }
        Ok(())
    }

    /// Returns the directories in one. A cgroup may go while this looks at it, and then has none; the root may not.
    fn directories(&mut self, parent: &Path) -> io::Result<Vec<(String, PathBuf)>> {
        let mut directories = Vec::new();
        let entries = match fs::read_dir(parent) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.left < MAX_DIRECTORIES => {
                return Ok(directories);
            }
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                self.left = self.left.checked_sub(1).ok_or_else(|| io::Error::other("too many cgroups"))?;
                directories.push((entry.file_name().to_string_lossy().into_owned(), entry.path()));
            }
        }
        Ok(directories)
    }
}

/// Returns the UID of the pod that a cgroup is of.
fn pod_uid(name: &str) -> Option<String> {
    let of_systemd = name.strip_suffix(".slice").and_then(|name| name.rsplit_once("-pod"));
    let uid =
        of_systemd.map(|(_, uid)| uid.replace('_', "-")).or_else(|| name.strip_prefix("pod").map(str::to_owned))?;
    let is_uid = !uid.is_empty() && uid.len() <= 64 && uid.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    is_uid.then_some(uid)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

    use super::*;

    const UID: &str = "0f3c9a52-5b8e-4d5e-9f7c-0a1b2c3d4e5f";
    const STATIC: &str = "8f7c5b6a4d3e2f1a0b9c8d7e6f5a4b3c";

    fn running(directories: &[&str]) -> io::Result<Vec<String>> {
        let root = tempfile::tempdir().unwrap();
        directories.iter().for_each(|directory| fs::create_dir_all(root.path().join(directory)).unwrap());
        Ok(running_pods(root.path())?.into_iter().collect())
    }

    #[test] // rule 101
    fn pods_are_found_with_both_drivers_and_both_versions() {
        let slice = UID.replace('-', "_");
        for tree in [
            format!("kubepods/burstable/pod{UID}/0123"),
            format!("kubepods/pod{UID}/0123"),
            format!("memory/kubepods/besteffort/pod{UID}/0123"),
            format!(
                "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice}.slice/cri-containerd-0123.scope"
            ),
            format!("kubepods.slice/kubepods-pod{slice}.slice/crio-0123.scope"),
            format!("kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{slice}.slice/cri-containerd-0123.scope"),
            format!("kubelet/kubepods/burstable/pod{UID}/0123"),
        ] {
            assert_eq!(running(&[&tree]).unwrap(), [UID], "{tree}");
        }
        assert_eq!(running(&[&format!("kubepods/burstable/pod{STATIC}/0123")]).unwrap(), [STATIC]);
    }

    #[test] // rule 101
    fn pod_without_containers_does_not_run() {
        let ended = format!("kubepods/burstable/pod{STATIC}");
        assert_eq!(running(&[&ended, &format!("kubepods/burstable/pod{UID}/0123")]).unwrap(), [UID]);
        assert!(running(&["kubepods/burstable"]).unwrap().is_empty());
    }

    #[test] // rule 101
    fn tree_without_a_kubelet_is_no_information() {
        for tree in [&["system.slice/a.service"][..], &[], &["kubepod/x"], &["a/b/c/d/e/kubepods"]] {
            assert!(running(tree).is_err(), "{tree:?}");
        }
        assert!(running_pods(Path::new("/nonexistent")).is_err());
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("kubepods"), "a file").unwrap();
        std::os::unix::fs::symlink("/", root.path().join("kubepods.slice")).unwrap();
        assert!(running_pods(root.path()).is_err());
    }

    #[test] // rule 101
    fn tree_that_may_not_be_read_is_no_information() {
        let root = tempfile::tempdir().unwrap();
        let pod = root.path().join(format!("kubepods/burstable/pod{UID}"));
        fs::create_dir_all(pod.join("0123")).unwrap();
        fs::set_permissions(&pod, fs::Permissions::from_mode(0o000)).unwrap();
        // Root may read everything, until it gives that up, as this thread does.
        let read = || {
            let held = capabilities(None).unwrap();
            let effective = held.effective - CapabilitySet::DAC_OVERRIDE - CapabilitySet::DAC_READ_SEARCH;
            set_capabilities(None, CapabilitySets { effective, ..held }).unwrap();
            running_pods(root.path()).unwrap_err().kind()
        };
        let error = std::thread::scope(|scope| scope.spawn(read).join().unwrap());
        assert_eq!(error, io::ErrorKind::PermissionDenied);
        fs::set_permissions(&pod, fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(running_pods(root.path()).unwrap(), [UID.to_owned()].into());
    }

    #[test] // rule 101
    fn thousands_of_pods_are_read_up_to_a_limit() {
        let root = tempfile::tempdir().unwrap();
        let uids = || (0..3000).map(|number| format!("{number:08}-0000-4000-8000-000000000000"));
        let burstable = root.path().join("kubepods/burstable");
        uids().for_each(|uid| fs::create_dir_all(burstable.join(format!("pod{uid}/0123"))).unwrap());
        assert_eq!(running_pods(root.path()).unwrap(), uids().collect());
        let mut walk = Walk { left: 5999, has_kubelet: true, running: BTreeSet::new() };
        let error = walk.find_pods(&burstable, 1).unwrap_err();
        assert_eq!(error.to_string(), "too many cgroups", "half of a tree tells nothing");
    }

    #[test] // rule 101
    fn names_that_confuse_are_no_pods() {
        let names =
            ["pod", "pod..", "podé", "kubepods-burstable-pod.slice", "xpod1", &format!("pod{}", "a".repeat(65))];
        let trees: Vec<String> = names.iter().map(|name| format!("kubepods/{name}/x/y")).collect();
        let trees: Vec<&str> = trees.iter().map(String::as_str).collect();
        assert!(running(&trees).unwrap().is_empty());
    }
}
