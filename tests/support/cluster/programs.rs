//! The programs of the cluster: those that `tests/cluster/build.sh` makes, or those of a release in a directory that the
//! environment variable AKRI_KUBERNETES names. Flags and files depend on their version.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context as _, ensure};

use super::layout::Layout;

/// The environment variable that names a directory with the programs of a release.
pub(super) const KUBERNETES: &str = "AKRI_KUBERNETES";

/// The programs that a release has to have, all of one version.
const COMPONENTS: [&str; 4] = ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet"];

/// Programs that are taken from it if they are there, with what makes them print their version.
const OTHERS: [(&str, &[&str]); 5] = [
    ("etcd", &["--version"]),
    ("containerd", &["--version"]),
    ("ctr", &["--version"]),
    ("runc", &["--version"]),
    ("helm", &["version", "--short"]),
];

/// The other programs of a cluster, but for network plugins.
const NEEDED: [&str; 6] = ["etcd", "containerd", "containerd-shim-runc-v2", "ctr", "runc", "busybox"];

/// The network plugins.
const PLUGINS: [&str; 3] = ["loopback", "ptp", "host-local"];

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
fn version(directory: &Path) -> anyhow::Result<Version> {
    let of_component = |name| -> anyhow::Result<_> { Ok((name, version_of(&directory.join(name), &["--version"])?)) };
    let mut versions = COMPONENTS.into_iter().map(of_component);
    let (first, version) = versions.next().context("no components")??;
    ensure!(version >= OLDEST, "{first} in {} is {version}: {OLDEST} or newer is needed", directory.display());
    for other in versions {
        let (name, other) = other?;
        ensure!(other == version, "{name} in {} is {other}, but {first} is {version}", directory.display());
    }
    Ok(version)
}

/// Checks that kubectl, which may be that of `make peers`, is made for API servers of this version.
fn check_kubectl(kubectl: &Path, server: Version) -> anyhow::Result<()> {
    let client = version_of(kubectl, &["version", "--client"])?;
    let is_near = client.minor.abs_diff(server.minor) <= 1;
    ensure!(is_near, "{} is {client}, too far from {server}: add the kubectl of the release", kubectl.display());
    Ok(())
}

fn version_of(program: &Path, question: &[&str]) -> anyhow::Result<Version> {
    let printed = ask(program, question)?;
    let version = Version::parse(&printed);
    version.with_context(|| format!("{} {} prints '{}'", program.display(), question.join(" "), printed.trim()))
}

/// Returns what a program prints of its version.
fn ask(program: &Path, question: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(program).args(question).output();
    let output = output.with_context(|| format!("cannot run {}", program.display()))?;
    ensure!(output.status.success(), "{} {} fails", program.display(), question.join(" "));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the version of the cluster's programs; a run asks them once. Without a release it is that of those that are built, or will be.
///
/// # Panics
/// If the release can't be used.
pub fn current() -> Version {
    static CURRENT: OnceLock<Version> = OnceLock::new();
    *CURRENT.get_or_init(|| match release().map(|directory| version(&directory)) {
        None => OLDEST,
        Some(version) => version.unwrap_or_else(|error| panic!("the programs of KUBERNETES=DIR: {error:#}")),
    })
}

/// Returns what the programs of the release say of their versions, a line each; nothing without a release.
///
/// # Errors
/// Names one that does not run.
pub(super) fn describe() -> anyhow::Result<String> {
    let Some(directory) = release() else { return Ok(String::new()) };
    let mut lines = format!("Kubernetes {} of {}\n", current(), directory.display());
    if let Some(kubectl) = super::installation::program("kubectl") {
        check_kubectl(&kubectl, current())?;
        lines += &format!("kubectl: {}\n", kubectl.display());
    }
    for (name, question) in OTHERS.into_iter().filter(|(name, _)| directory.join(name).exists()) {
        let printed = ask(&directory.join(name), question)?;
        lines += &format!("{name}: {}\n", printed.lines().next().unwrap_or_default());
    }
    Ok(lines)
}

/// Returns the directory of the network plugins: that of the release if it has them.
pub(super) fn network_plugins() -> PathBuf {
    let of_release = release().filter(|release| PLUGINS.iter().all(|name| release.join(name).exists()));
    of_release.unwrap_or_else(Layout::built)
}

/// Returns the first program of a cluster that is neither in the release nor built.
pub(super) fn missing() -> Option<&'static str> {
    let plugins = PLUGINS.into_iter().filter(|name| !network_plugins().join(name).exists());
    NEEDED.into_iter().filter(|name| !Layout::program(name).exists()).chain(plugins).next()
}

/// Returns a program of the release if it has it.
pub fn of_release(name: &str) -> Option<PathBuf> {
    Some(release()?.join(name)).filter(|path| path.exists())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::{COMPONENTS, Version, check_kubectl, version};

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
        let kubectl = newest.path().join("kubelet"); // it prints a version, whatever it is asked
        check_kubectl(&kubectl, Version { minor: 37, patch: 0 }).unwrap();
        let far = check_kubectl(&kubectl, Version { minor: 24, patch: 0 }).unwrap_err().to_string();
        assert!(far.ends_with("is 1.36.2, too far from 1.24.0: add the kubectl of the release"), "{far}");
    }
}
