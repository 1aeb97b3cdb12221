//! CDI specification files, for Podman, Docker, containerd and CRI-O. Each Instance has a file of its own, which is
//! created, changed and removed independently. The files follow Container Device Interface 0.5.0, the first version
//! that allows host paths of device nodes and device names beginning with a digit.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use akri_model::edits::ContainerEdits;
use akri_model::names::{RESOURCE_PREFIX, cdi_class, variable_suffix};
use akri_node::if_found;
use akri_node::replace::replace;
use serde_json::{Value, json};
use tracing::warn;

/// The destination of specification files.
#[derive(Debug, Clone)]
pub struct Cdi {
    /// A directory that container engines read, such as `/var/run/cdi`.
    pub directory: PathBuf,
    /// Set if the kubelet gets CDI names instead of device nodes and mounts (rule 8).
    pub kubelet: bool,
}

impl Cdi {
    /// Writes the file of an Instance; returns whether it exists now. It is synced to disk if the kubelet gets its
    /// name, since an unresolvable name keeps the container from starting.
    pub async fn put(&self, configuration: &str, hash: &str, edits: &ContainerEdits) -> bool {
        let path = self.path(configuration, hash);
        let text = format!("{:#}\n", spec(configuration, hash, self.env(hash, edits), edits));
        let sync = self.kubelet;
        self.run(path, move |path| replace(path, text.as_bytes(), sync)).await
    }

    /// The variables of a file. Of the same variable of several devices the last file would win; a kubelet is answered with
    /// the variables without the hash, in which the lowest slot name wins (rule 16).
    fn env(&self, hash: &str, edits: &ContainerEdits) -> Vec<String> {
        let suffix = variable_suffix(hash);
        let env = edits.env.iter().filter(|(key, _)| !self.kubelet || key.ends_with(&suffix));
        env.map(|(key, value)| format!("{key}={value}")).collect()
    }

    /// Removes the file of an Instance, if it exists.
    pub async fn remove(&self, configuration: &str, hash: &str) {
        self.run(self.path(configuration, hash), |path| if_found(fs::remove_file(path)).map(drop)).await;
    }

    async fn run(&self, path: PathBuf, step: impl FnOnce(&Path) -> io::Result<()> + Send + 'static) -> bool {
        let shown = path.display().to_string();
        let done = tokio::task::spawn_blocking(move || step(&path)).await.map_err(io::Error::from).flatten();
        done.inspect_err(|error| warn!("CDI specification '{shown}': {error}")).is_ok()
    }

    fn path(&self, configuration: &str, hash: &str) -> PathBuf {
        self.directory.join(format!("akri.sh-{}-{hash}.json", cdi_class(configuration)))
    }
}

fn spec(configuration: &str, hash: &str, env: Vec<String>, edits: &ContainerEdits) -> Value {
    let node = |spec: &akri_model::device::DeviceSpec| json!({"path": spec.container_path, "hostPath": spec.host_path, "permissions": spec.permissions});
    let mount = |mount: &akri_model::device::Mount| {
        let access = if mount.read_only { "ro" } else { "rw" };
        json!({"hostPath": mount.host_path, "containerPath": mount.container_path,
            "options": [access, "nosuid", "nodev", "bind"]})
    };
    let nodes: Vec<Value> = edits.device_specs.iter().map(node).collect();
    let mounts: Vec<Value> = edits.mounts.iter().map(mount).collect();
    json!({
        "cdiVersion": "0.5.0",
        "kind": format!("{RESOURCE_PREFIX}{}", cdi_class(configuration)),
        "devices": [{"name": hash, "containerEdits": {"env": env, "deviceNodes": nodes, "mounts": mounts}}],
    })
}

#[cfg(test)]
mod tests {
    use akri_model::device::{DeviceSpec, Mount};

    use super::*;

    fn edits() -> ContainerEdits {
        ContainerEdits {
            env: [("K".into(), "v=1".into()), ("K_8120FE".into(), "v=1".into())].into(),
            device_specs: vec![DeviceSpec {
                container_path: "/dev/cam".into(),
                host_path: "/dev/video0".into(),
                permissions: "rw".into(),
            }],
            mounts: vec![Mount { container_path: "/m".into(), host_path: "/dev/m".into(), read_only: true }],
            ..ContainerEdits::default()
        }
    }

    #[tokio::test] // rule 8
    async fn file_follows_the_cdi_specification() {
        let directory = tempfile::tempdir().unwrap();
        let cdi = Cdi { directory: directory.path().join("cdi"), kubelet: true };
        assert!(cdi.put("my.cam", "8120fe", &edits()).await);
        let class = cdi_class("my.cam");
        let text = fs::read_to_string(cdi.directory.join(format!("akri.sh-{class}-8120fe.json"))).unwrap();
        let expected = json!({
            "cdiVersion": "0.5.0",
            "kind": format!("akri.sh/{class}"),
            "devices": [{"name": "8120fe", "containerEdits": {
                "env": ["K_8120FE=v=1"],
                "deviceNodes": [{"path": "/dev/cam", "hostPath": "/dev/video0", "permissions": "rw"}],
                "mounts": [{"hostPath": "/dev/m", "containerPath": "/m", "options": ["ro", "nosuid", "nodev", "bind"]}],
            }}],
        });
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
        cdi.remove("my.cam", "8120fe").await;
        cdi.remove("my.cam", "8120fe").await;
        assert_eq!(fs::read_dir(&cdi.directory).unwrap().count(), 0);
    }

    #[test] // rule 16
    fn engines_without_kubelet_get_the_variables_without_hash_too() {
        let cdi = Cdi { directory: PathBuf::new(), kubelet: false };
        assert_eq!(cdi.env("8120fe", &edits()), ["K=v=1", "K_8120FE=v=1"]);
    }

    #[tokio::test] // rule 8
    async fn uncreatable_directory_is_a_warning() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(!Cdi { directory: file.join("cdi"), kubelet: false }.put("cam", "8120fe", &edits()).await);
    }
}
