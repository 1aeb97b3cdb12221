//! The programs of the cluster: those that `tests/cluster/build.sh` makes, or those of a release in a directory that the
//! environment variable AKRI_KUBERNETES names. Flags and files depend on their version.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context as _, ensure};

use super::layout::Layout;

/// The environment variable that names a directory with the programs of a release.
pub(super) const KUBERNETES: &str = "AKRI_KUBERNETES";

/// The programs that a release has to have, all of one version. Others, such as etcd, are taken from it if they are there.
const COMPONENTS: [&str; 4] = ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet"];

/// The oldest version that is supported.
const OLDEST: Version = Version { minor: 20, patch: 0 };

/// A version of Kubernetes 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    pub minor: u32,
    patch: u32,
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "1.{}.{}", self.minor, self.patch)
    }
}

impl Version {
    /// Reads what programs print, such as `Kubernetes v1.36.2-rc.1`.
    fn parse(printed: &str) -> Option<Self> {
        let mut numbers = printed.trim().rsplit_once("v1.")?.1.split(|c: char| !c.is_ascii_digit());
        Some(Self { minor: numbers.next()?.parse().ok()?, patch: numbers.next()?.parse().ok()? })
    }
}

/// Returns the directory that AKRI_KUBERNETES names.
pub(super) fn release() -> Option<PathBuf> {
    std::env::var_os(KUBERNETES).filter(|named| !named.is_empty()).map(PathBuf::from)
}

/// Returns the version of the programs in a directory.
///
/// # Errors
/// Names the program that is missing, does not run, is too old, or is of another version than the first.
pub(super) fn version(directory: &Path) -> anyhow::Result<Version> {
    let of_component = |name| -> anyhow::Result<_> { Ok((name, ask(&directory.join(name))?)) };
    let mut versions = COMPONENTS.into_iter().map(of_component);
    let (first, version) = versions.next().context("no components")??;
    ensure!(version >= OLDEST, "{first} in {} is {version}: {OLDEST} or newer is needed", directory.display());
    for other in versions {
        let (name, other) = other?;
        ensure!(other == version, "{name} in {} is {other}, but {first} is {version}", directory.display());
    }
    Ok(version)
}

fn ask(program: &Path) -> anyhow::Result<Version> {
    let output = Command::new(program).arg("--version").output();
    let output = output.with_context(|| format!("cannot run {}", program.display()))?;
    let printed = String::from_utf8_lossy(&output.stdout);
    Version::parse(&printed).with_context(|| format!("{} --version prints '{}'", program.display(), printed.trim()))
}

/// Returns the version of the cluster's programs; a run asks them once. 1.20 if they can't be asked: then nothing starts.
pub fn current() -> Version {
    static CURRENT: OnceLock<Version> = OnceLock::new();
    *CURRENT.get_or_init(|| {
        let directory = release().unwrap_or_else(Layout::built);
        version(&directory).unwrap_or(OLDEST)
    })
}

/// Returns a program of the release if it has it.
pub fn of_release(name: &str) -> Option<PathBuf> {
    Some(release()?.join(name)).filter(|path| path.exists())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::{COMPONENTS, Version, version};

    fn release(versions: [&str; 4]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (name, version) in COMPONENTS.into_iter().zip(versions).filter(|(_, version)| !version.is_empty()) {
            let path = directory.path().join(name);
            fs::write(&path, format!("#!/bin/sh\necho Kubernetes {version}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        directory
    }

    fn refusal(versions: [&str; 4]) -> String {
        format!("{:#}", version(release(versions).path()).unwrap_err())
    }

    #[test]
    fn releases_are_complete_and_of_one_version() {
        let newest = release(["v1.36.2-rc.1", "v1.36.2", "v1.36.2+a1b2", "v1.36.2"]);
        assert_eq!(version(newest.path()).unwrap(), Version { minor: 36, patch: 2 });
        assert!(refusal(["v1.36.2", "v1.36.2", "", "v1.36.2"]).contains("kube-scheduler"));
        let mixed = refusal(["v1.36.2", "v1.36.2", "v1.36.2", "v1.35.0"]);
        assert!(mixed.contains("kubelet in ") && mixed.ends_with("is 1.35.0, but kube-apiserver is 1.36.2"), "{mixed}");
        assert!(refusal(["v1.19.9"; 4]).ends_with("is 1.19.9: 1.20.0 or newer is needed"));
        assert!(refusal(["latest"; 4]).ends_with("--version prints 'Kubernetes latest'"));
    }
}
