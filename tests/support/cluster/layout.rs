//! The files of the cluster.

use std::path::{Path, PathBuf};

/// The folder of the cluster: `bin/` from `tests/cluster/build.sh`, and `run/`, which is recreated at each start.
#[derive(Debug, Clone)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    /// Returns the layout in this project's `target/`.
    pub fn new() -> Self {
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
        let target = target.canonicalize().unwrap_or(target);
        Self { root: target.join("cluster") }
    }

    /// Returns the folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the directory of programs.
    pub fn bin(&self) -> PathBuf {
        self.root.join("bin")
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
