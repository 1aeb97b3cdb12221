//! The device that the plugin stories serve, and its node.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use akri_kubelet::resource::{AdvertisedDevices, Resource, VirtualDevice};
use akri_kubelet::{Plugin, Plugins};
use akri_model::claim_machine::{Preference, Refusal};
use akri_model::edits::ContainerEdits;
use async_trait::async_trait;
use tempfile::TempDir;
use tokio::sync::watch;

/// A resource that hands out whatever it is asked for and writes down the requests.
pub struct FakeResource {
    pub name: String,
    pub advertised: watch::Sender<AdvertisedDevices>,
    state: Mutex<FakeResourceState>,
}

#[derive(Default)]
struct FakeResourceState {
    requests: Vec<Vec<Vec<String>>>,
    claimed: BTreeSet<String>,
}

impl FakeResource {
    /// `akri.sh/<name>` with ids `<name>-0` to `<name>-<count - 1>`, all healthy.
    pub fn new(name: &str, count: usize) -> Arc<Self> {
        let devices = (0..count).map(|i| VirtualDevice { id: format!("{name}-{i}"), healthy: true }).collect();
        let advertised = watch::Sender::new(AdvertisedDevices { devices, ..AdvertisedDevices::default() });
        Arc::new(Self { name: format!("akri.sh/{name}"), advertised, state: Mutex::default() })
    }

    pub fn set_health(&self, index: usize, healthy: bool) {
        self.advertised.send_modify(|advertised| advertised.devices[index].healthy = healthy);
    }

    pub fn requests(&self) -> Vec<Vec<Vec<String>>> {
        self.state.lock().unwrap().requests.clone()
    }
}

#[async_trait]
impl Resource for FakeResource {
    fn name(&self) -> &str {
        &self.name
    }

    fn advertised(&self) -> watch::Receiver<AdvertisedDevices> {
        self.advertised.subscribe()
    }

    async fn allocate(&self, containers: Vec<Vec<String>>) -> Result<Vec<ContainerEdits>, Refusal> {
        let mut state = self.state.lock().unwrap();
        state.requests.push(containers.clone());
        state.claimed.extend(containers.iter().flatten().cloned());
        let response = |ids: &Vec<String>| ContainerEdits {
            env: [("IDS".to_owned(), ids.join(","))].into(),
            ..ContainerEdits::default()
        };
        Ok(containers.iter().map(response).collect())
    }

    /// The last ones, so that it shows.
    async fn preferred(&self, containers: Vec<Preference>) -> Vec<Vec<String>> {
        let pick = |preference: Preference| {
            let free = preference.available.iter().filter(|id| !preference.required.contains(id)).rev();
            let more = preference.size - preference.required.len();
            preference.required.iter().chain(free.take(more)).cloned().collect()
        };
        containers.into_iter().map(pick).collect()
    }

    async fn holds(&self, ids: Vec<String>) -> bool {
        let state = self.state.lock().unwrap();
        ids.iter().all(|id| state.claimed.contains(id))
    }
}

/// A node of one test.
pub struct Node {
    pub dir: TempDir,
    pub plugins: Plugins,
}

impl Node {
    /// A node on which a kubelet has run before.
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("device-plugins")).unwrap();
        Self::fresh(dir)
    }

    pub fn fresh(dir: TempDir) -> Self {
        let plugins = Plugins::start(dir.path(), Default::default());
        Self { dir, plugins }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn sockets(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path().join("device-plugins")).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| path.extension().is_some_and(|e| e == "sock") && !path.ends_with("kubelet.sock")).collect()
    }

    pub fn serve(&self, fake_resource: &Arc<FakeResource>) -> Plugin {
        self.plugins.serve(Arc::clone(fake_resource) as Arc<dyn Resource>)
    }

    pub async fn registered(&self, count: usize) {
        let mut counts = self.plugins.counts();
        let registered = counts.wait_for(|counts| counts.registered == count);
        tokio::time::timeout(Duration::from_secs(60), registered).await.expect("registered in time").unwrap();
    }
}
