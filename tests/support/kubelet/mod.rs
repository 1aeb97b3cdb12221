//! A kubelet for tests: its device manager, as faithful as possible to `pkg/kubelet/cm/devicemanager`.
//!
//! Like the real one, it removes the sockets in its directory at start and keeps its checkpoint; it dials a plugin back
//! within 10 s and keeps one ListAndWatch stream per resource; it admits one pod at a time with one Allocate for a
//! single container, and uses only the first response; a failed Allocate is final for the pod; devices in the
//! checkpoint are never allocated again, but must be healthy when the pod is readmitted.
//!
//! It lacks topology, and does not remove a resource 5 minutes after its plugin has ended.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use akri_grpc::deviceplugin::device_plugin_client::DevicePluginClient;
use tokio::runtime::Runtime;
use tokio::time::{Instant, timeout_at};
use tonic::transport::Channel;

pub use admission::{AdmissionError, Admitted};
pub use view::{List, View};

use state::State;

mod admission;
mod checkpoint;
mod dial;
mod pod_resources;
mod registration;
mod state;
mod view;

/// Time limit of [`Kubelet::wait_for`]; only failing tests reach it.
const DEADLINE: Duration = Duration::from_secs(90);

/// The kubelet versions to simulate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Authority {
    /// 1.26 and later: `:authority` is "localhost"; dials before it answers Register and requests the options.
    #[default]
    Localhost,
    /// Earlier ones: `:authority` is the percent-encoded path of the socket; answers Register before dialling, and
    /// takes the options from the request.
    Path,
}

/// Deviations from a current kubelet.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// The `:authority` and related behaviour.
    pub authority: Authority,
    /// Notices the end of a connection late and then marks the resource unhealthy despite a new registration, as
    /// kubelets before late 2025.
    pub late_disconnect: bool,
}

/// A kubelet. It has its own runtime, so that it can be killed like a process.
pub struct Kubelet {
    dir: PathBuf,
    options: Options,
    state: Arc<State>,
    runtime: Option<Runtime>,
}

impl Kubelet {
    /// Starts a kubelet with this root directory (`/var/lib/kubelet` for a real one).
    pub fn start(dir: &Path) -> Self {
        Self::start_with(dir, Options::default())
    }

    /// Starts a kubelet with options.
    pub fn start_with(dir: &Path, options: Options) -> Self {
        raise_file_limit();
        let mut kubelet = Self { dir: dir.to_owned(), options, state: State::new(dir, false), runtime: None };
        kubelet.start_again();
        kubelet
    }

    /// Kills it: all connections break, sockets and checkpoint remain.
    pub fn stop(&mut self) {
        self.state.stop();
        // A kubelet that has ended answers nothing more, in particular not beside the next one. Waiting is not allowed on a runtime's thread.
        if let Some(runtime) = self.runtime.take() {
            std::thread::spawn(|| runtime.shutdown_timeout(Duration::from_secs(10))).join().unwrap();
        }
    }

    /// Starts again after [`Kubelet::stop`], from the checkpoint alone.
    pub fn start_again(&mut self) {
        assert!(self.runtime.is_none(), "the kubelet runs already");
        let plugins = self.dir.join("device-plugins");
        let pods = self.dir.join("pod-resources");
        fs::create_dir_all(&plugins).unwrap();
        fs::create_dir_all(&pods).unwrap();
        wipe_sockets(&plugins).unwrap();
        wipe_sockets(&pods).unwrap();
        let (refuse, bare) = self.state.change(|state| (state.refuse, std::mem::take(&mut state.view.bare)));
        self.state = State::new(&self.dir, refuse);
        self.state.change(|state| state.view.bare = bare);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let guard = runtime.enter();
        registration::serve(&plugins.join("kubelet.sock"), self.options, Arc::clone(&self.state)).unwrap();
        tokio::spawn(Arc::clone(&self.state).keep_saved());
        pod_resources::serve(&pods.join("kubelet.sock"), Arc::clone(&self.state)).unwrap();
        drop(guard);
        self.runtime = Some(runtime);
    }

    /// Kills and starts it.
    pub fn restart(&mut self) {
        self.stop();
        self.start_again();
    }

    /// Kills and starts it without its checkpoint, while containers run on: they are listed without devices.
    pub fn lose_checkpoint(&mut self) {
        self.stop();
        self.state.change(|state| state.view.list_bare(|_| true));
        fs::remove_file(self.dir.join("device-plugins").join(checkpoint::FILE)).unwrap();
        self.start_again();
    }

    /// Lets each so-manieth List of PodResources fail.
    pub fn fail_lists(&self, each: usize) {
        self.state.change(|state| state.view.failing_list = each);
    }

    /// Marks the devices of a resource unhealthy, as the late end of an old connection does.
    pub fn forget_health(&self, resource: &str) {
        self.state.change(|state| {
            let view = state.view.resources.entry(resource.to_owned()).or_default();
            view.unhealthy.append(&mut view.healthy);
        });
    }

    /// Sets whether every Register is answered with an error, also across restarts.
    pub fn refuse_registrations(&self, refuse: bool) {
        self.state.change(|state| state.refuse = refuse);
    }

    /// Admits a container with `count` devices of a resource as part of a pod. Admit the containers of a pod one after
    /// the other, before the next pod.
    pub async fn admit(
        &self,
        pod: &str,
        container: &str,
        resource: &str,
        count: usize,
    ) -> Result<Admitted, AdmissionError> {
        admission::admit(&self.state, pod, container, resource, count, false).await
    }

    /// Like [`Kubelet::admit`] for an init container: its devices are offered to later containers of the pod.
    pub async fn admit_init(
        &self,
        pod: &str,
        container: &str,
        resource: &str,
        count: usize,
    ) -> Result<Admitted, AdmissionError> {
        admission::admit(&self.state, pod, container, resource, count, true).await
    }

    /// Readmits a pod of the checkpoint, as a kubelet does once after its start. A failure is final for the pod.
    pub fn readmit(&self, pod: &str) -> Result<(), AdmissionError> {
        admission::readmit(&self.state, pod)
    }

    /// Ends a pod whose object stays, which frees its devices: kubelets before 1.34 list its containers without them. Newer ones
    /// leave them out, as if the pod had been removed.
    pub fn end_pod(&self, pod: &str) {
        self.state.change(|state| {
            state.view.list_bare(|of| of == pod);
            state.free(pod);
        });
    }

    /// Removes a pod, which frees its devices.
    pub fn remove_pod(&self, pod: &str) {
        self.state.change(|state| state.remove_pod(pod));
    }

    /// Lists another pod with the same devices, like a kubelet that has lost its state.
    pub fn list_twice(&self, pod: &str, other: &str) {
        self.state.change(|state| {
            let has = state.view.pods.iter().filter(|((name, ..), _)| name == pod);
            let copies = has.map(|((_, container, resource), admitted)| {
                ((other.to_owned(), container.clone(), resource.clone()), admitted.clone())
            });
            let copies: Vec<_> = copies.collect();
            state.view.pods.extend(copies);
        });
    }

    /// Returns the connection to a resource's plugin, for calls a kubelet would not make.
    pub fn plugin(&self, resource: &str) -> DevicePluginClient<Channel> {
        self.state.lock().endpoints[resource].client.clone()
    }

    /// Waits until the agent has polled what containers use, that many more times.
    pub async fn wait_for_polls(&self, count: usize) {
        let before = self.view(|view| view.polls);
        self.wait_for("polls", |view| view.polls >= before + count).await;
    }

    /// Reads the current state.
    pub fn view<T>(&self, observe: impl FnOnce(&View) -> T) -> T {
        observe(&self.state.lock().view)
    }

    /// Waits until the view satisfies a condition.
    ///
    /// # Panics
    /// With the view, after 90 s.
    pub async fn wait_for(&self, what: &str, condition: impl Fn(&View) -> bool) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let changed = self.state.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.view(&condition) {
                return;
            }
            if timeout_at(deadline, changed).await.is_err() {
                let seen = self.view(|view| format!("{view:#?}"));
                panic!("the kubelet never saw {what}, but: {seen}");
            }
        }
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Removes sockets as `CleanupPluginDirectory` does, and keeps all other files.
fn wipe_sockets(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        if is_socket && let Err(error) = fs::remove_file(entry.path()) {
            // Its owner may have removed it at the same time, which the real one ignores, too.
            assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
        }
    }
    Ok(())
}

/// Raises the limit of open files: a thousand resources take about four thousand descriptors with both ends in one
/// process.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
}
