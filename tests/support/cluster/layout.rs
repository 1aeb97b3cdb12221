//! Where everything of the cluster is.

use std::path::{Path, PathBuf};

/// The folder of the cluster: `bin/` as `tests/cluster/build.sh` made it, and `run/`, which is made anew at each start.
#[derive(Debug, Clone)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    /// The one in this project's `target/`.
    pub fn new() -> Self {
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
        let target = target.canonicalize().unwrap_or(target);
        Self { root: target.join("cluster") }
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// All programs.
    pub fn bin(&self) -> PathBuf {
        self.root.join("bin")
    }

    /// What one cluster leaves behind: nothing of it is needed again.
    pub fn run(&self) -> PathBuf {
        self.root.join("run")
    }

    /// What components printed, which stays until the next start.
    pub fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    /// A certificate, `NAME.crt`, with its key, `NAME.key`.
    pub fn certificates(&self) -> PathBuf {
        self.run().join("certificates")
    }

    /// How a user of the API server finds it.
    pub fn kubeconfig(&self, user: &str) -> PathBuf {
        self.certificates().join(format!("{user}.kubeconfig"))
    }

    /// Scripts and configuration of the project.
    pub fn sources() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("cluster")
    }
}
