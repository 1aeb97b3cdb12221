//! A kubelet for tests: the part of it that device plugins meet, as faithful as `pkg/kubelet/cm/devicemanager`.
//!
//! What it does like the real one: at start it removes the sockets in its directory and keeps its checkpoint; it dials a
//! plugin back within 10 s and keeps one ListAndWatch stream for each resource; it admits one pod at a time with one
//! Allocate for a single container, and uses only the first answer; an Allocate that fails is final for the pod; what the
//! checkpoint holds is never allocated again, but its devices have to be healthy when the pod is admitted anew.
//!
//! What it leaves out: topology, and that a resource is forgotten 5 minutes after its plugin is gone.

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

/// How long [`Kubelet::wait_for`] waits. Long, because only a test that fails waits that long.
const DEADLINE: Duration = Duration::from_secs(30);

/// Which kubelets to be like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Authority {
    /// 1.26 and later: `:authority` is "localhost"; dials before it answers Register and asks for the options.
    #[default]
    Localhost,
    /// Earlier ones: `:authority` is the path of the socket, percent-encoded; answers Register first, dials then, and reads
    /// the options from the request.
    Path,
}

/// How a test kubelet differs from a good one of today.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// What it sends as `:authority`, and what goes with that.
    pub authority: Authority,
    /// Notices the end of a connection late and then marks the resource unhealthy, although a new registration is there
    /// already: kubelets before the fix of late 2025.
    pub late_disconnect: bool,
}

/// A kubelet. It lives in a runtime of its own, so that it can die like a process: all at once.
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

    /// The same, with differences.
    pub fn start_with(dir: &Path, options: Options) -> Self {
        raise_file_limit();
        let mut kubelet = Self { dir: dir.to_owned(), options, state: State::new(dir, false), runtime: None };
        kubelet.start_again();
        kubelet
    }

    /// Dies: every connection breaks, sockets and checkpoint stay where they are.
    pub fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    /// Starts after [`Kubelet::stop`], with what the checkpoint holds and nothing else.
    pub fn start_again(&mut self) {
        assert!(self.runtime.is_none(), "the kubelet runs already");
        let plugins = self.dir.join("device-plugins");
        let pods = self.dir.join("pod-resources");
        fs::create_dir_all(&plugins).unwrap();
        fs::create_dir_all(&pods).unwrap();
        wipe_sockets(&plugins).unwrap();
        wipe_sockets(&pods).unwrap();
        let refuse = self.state.lock().refuse;
        self.state = State::new(&self.dir, refuse);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let guard = runtime.enter();
        registration::serve(&plugins.join("kubelet.sock"), self.options, Arc::clone(&self.state)).unwrap();
        pod_resources::serve(&pods.join("kubelet.sock"), Arc::clone(&self.state)).unwrap();
        drop(guard);
        self.runtime = Some(runtime);
    }

    /// Dies and starts again.
    pub fn restart(&mut self) {
        self.stop();
        self.start_again();
    }

    /// Answers every Register with an error, or no longer; over restarts, too.
    pub fn refuse_registrations(&self, refuse: bool) {
        self.state.change(|state| state.refuse = refuse);
    }

    /// Admits a container that asks for `count` devices of a resource, as the pod is admitted. Containers of a pod are
    /// to be admitted one after the other, before the next pod.
    pub async fn admit(
        &self,
        pod: &str,
        container: &str,
        resource: &str,
        count: usize,
    ) -> Result<Admitted, AdmissionError> {
        admission::admit(&self.state, pod, container, resource, count, false).await
    }

    /// The same for an init container: what it gets is offered to the containers of the pod that come after it.
    pub async fn admit_init(
        &self,
        pod: &str,
        container: &str,
        resource: &str,
        count: usize,
    ) -> Result<Admitted, AdmissionError> {
        admission::admit(&self.state, pod, container, resource, count, true).await
    }

    /// Admits a pod of the checkpoint anew, as a kubelet does once after its start. What fails is final for the pod.
    pub fn readmit(&self, pod: &str) -> Result<(), AdmissionError> {
        admission::readmit(&self.state, pod)
    }

    /// The pod has ended and is deleted: its devices are free.
    pub fn remove_pod(&self, pod: &str) {
        self.state.change(|state| state.remove_pod(pod));
    }

    /// From now on another pod is listed with what a pod has, too, as by a kubelet that has lost its memory.
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

    /// The connection to a resource's plugin, for calls a kubelet would not make.
    pub fn plugin(&self, resource: &str) -> DevicePluginClient<Channel> {
        self.state.lock().endpoints[resource].client.clone()
    }

    /// Looks at the state of now.
    pub fn view<T>(&self, look: impl FnOnce(&View) -> T) -> T {
        look(&self.state.lock().view)
    }

    /// Waits until the view is as wanted.
    ///
    /// # Panics
    /// With the view, if that takes more than 30 s.
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
                self.view(|view| panic!("the kubelet never saw {what}, but: {view:#?}"));
            }
        }
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.stop();
    }
}

/// As `CleanupPluginDirectory` does: sockets go, the checkpoint and everything else stays.
fn wipe_sockets(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        if is_socket && let Err(error) = fs::remove_file(entry.path()) {
            // Its owner may have removed it in the same moment, which the real one does not mind either.
            assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
        }
    }
    Ok(())
}

/// A thousand resources take some four thousand descriptors when both ends are in one process.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
}
