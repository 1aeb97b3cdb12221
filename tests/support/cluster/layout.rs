//! The files of the cluster.

use std::env;
use std::path::{Path, PathBuf};

use super::programs;

/// The variable with the name of another cluster than the first one, for stories that run beside those of that.
pub(super) const CLUSTER: &str = "AKRI_CLUSTER";

/// The folder of a cluster, one for each version of Kubernetes, and for each AKRI_CLUSTER of runs that have several: `run/`,
/// which is recreated at each start, and logs. The first one has `bin/`, too, from `tests/cluster/build.sh`.
#[derive(Debug, Clone)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    /// Returns the layout in this project's `target/`.
    pub fn new() -> Self {
        let version = programs::release().map(|_| programs::current().to_string());
        let parts = ["cluster".to_owned()].into_iter().chain(version).chain(other());
        Self { root: target().join(parts.collect::<Vec<_>>().join("-")) }
    }

    /// Returns the directory of the programs that `tests/cluster/build.sh` makes.
    pub fn built() -> PathBuf {
        target().join("cluster/bin")
    }

    /// Returns the folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns a program.
    pub fn program(name: &str) -> PathBuf {
        programs::of_release(name).unwrap_or_else(|| Self::built().join(name))
    }

    /// Returns the directory of temporary files.
    pub fn run(&self) -> PathBuf {
        self.root.join("run")
    }

    /// Returns the directory of logs, which are kept until the next start.
    pub fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    /// Returns the directory of certificates, `NAME.crt`, and keys, `NAME.key`.
    pub fn certificates(&self) -> PathBuf {
        self.run().join("certificates")
    }

    /// Returns the kubeconfig of a user.
    pub fn kubeconfig(&self, user: &str) -> PathBuf {
        self.certificates().join(format!("{user}.kubeconfig"))
    }

    /// Returns the directory of the project's scripts and configuration.
    pub fn sources() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("cluster")
    }
}

/// Returns the name of another cluster than the first one.
pub(super) fn other() -> Option<String> {
    env::var(CLUSTER).ok()
}

fn target() -> PathBuf {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    target.canonicalize().unwrap_or(target)
}
