//! Device plugins without an agent: what kubelets alone need for as many resources.

use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;

use akri_kubelet::resource::{AdvertisedDevices, Resource, VirtualDevice};
use akri_kubelet::{Plugin, Plugins};
use akri_model::claim_machine::{Preference, Refusal};
use akri_model::edits::ContainerEdits;
use akri_tests::cluster::Worker;
use async_trait::async_trait;
use tokio::sync::watch;

/// The word that makes this program serve them on the node where it runs, until it is killed.
pub(crate) const WORD: &str = "bare-plugins";

/// The beginning of the names of their resources.
pub(crate) const PREFIX: &str = "akri.sh/bare-";

struct Bare {
    name: String,
    advertised: watch::Sender<AdvertisedDevices>,
}

impl Bare {
    fn new(number: usize) -> Self {
        let name = format!("{PREFIX}{number}");
        let devices = vec![VirtualDevice { id: format!("bare-{number}-0"), healthy: true }];
        Self { name, advertised: watch::Sender::new(AdvertisedDevices { devices, resend: 0 }) }
    }
}

#[async_trait]
impl Resource for Bare {
    fn name(&self) -> &str {
        &self.name
    }

    fn advertised(&self) -> watch::Receiver<AdvertisedDevices> {
        self.advertised.subscribe()
    }

    async fn allocate(&self, _: Vec<Vec<String>>) -> Result<Vec<ContainerEdits>, Refusal> {
        Err(Refusal::Unavailable("it is measured and not used".to_owned()))
    }

    async fn preferred(&self, _: Vec<Preference>) -> Vec<Vec<String>> {
        Vec::new()
    }

    async fn holds(&self, _: Vec<String>) -> bool {
        false
    }
}

/// Serves so many, for as long as it is polled.
pub(crate) async fn serve(count: usize) {
    let plugins = Plugins::start(Path::new("/var/lib/kubelet"), Default::default());
    let _served: Vec<Plugin> = (0..count).map(|number| plugins.serve(Arc::new(Bare::new(number)))).collect();
    std::future::pending().await
}

/// Starts this program on a node.
pub(crate) fn start(node: &Worker, count: usize) -> Child {
    let mut command = node.command(&std::env::current_exe().unwrap());
    command.args([WORD, &count.to_string()]).stdout(Stdio::null()).spawn().unwrap()
}
