//! A story on the cluster: a client and a namespace.

use std::fmt::Debug;
use std::fs::File;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, ServiceAccount};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, DynamicObject, LogParams, Patch, PatchParams, PostParams};
use kube::core::{GroupVersionKind, ObjectMeta};
use kube::discovery::{self, Scope};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use super::lifecycle::{Cluster, Extent, Use};
use super::ready;
use crate::skip::{is_left_to_make_test, leave_out, skip};

/// Time limit of a wait; only failing tests reach it.
const DEADLINE: Duration = Duration::from_secs(90);

/// The field manager of stories.
const FIELD_MANAGER: &str = "story";

/// Allows many concurrent stories, or one that stops components. A lock file protects against other runs in the same
/// folder.
static CLUSTER_LOCK: RwLock<()> = RwLock::const_new(());

/// This run's use of the cluster in `target/`, or the reason why there is none.
static USED: OnceLock<Result<Use, String>> = OnceLock::new();

enum ClusterLock {
    Beside { _guard: RwLockReadGuard<'static, ()>, _others: File },
    Alone { _guard: RwLockWriteGuard<'static, ()>, _others: File },
}

impl ClusterLock {
    async fn beside() -> Self {
        let _guard = CLUSTER_LOCK.read().await;
        let others = spawn_blocking(|| Cluster::new().lock_shared("stories"));
        Self::Beside { _guard, _others: others.await.unwrap().unwrap() }
    }

    async fn alone() -> Self {
        let _guard = CLUSTER_LOCK.write().await;
        let others = spawn_blocking(|| Cluster::new().lock("stories"));
        Self::Alone { _guard, _others: others.await.unwrap().unwrap() }
    }
}

/// A story on a cluster. Its namespace is deleted if it succeeds.
pub struct Story {
    client: Client,
    namespace: String,
    cluster: Option<Cluster>,
    _lock: ClusterLock,
}

impl Story {
    /// Begins a story on the cluster of KUBECONFIG, or on that of the tests. `None`, with the reason printed, if there
    /// is neither.
    pub async fn begin(name: &str) -> Option<Self> {
        let lock = ClusterLock::beside().await;
        if !is_elsewhere() {
            return Self::on_own(name, lock, Extent::Nodes).await;
        }
        if is_left_to_make_test() {
            return None;
        }
        Self::on_elsewhere(name, lock).await
    }

    /// Like [`Story::begin`], where the API alone is needed, and pods need not run.
    pub async fn begin_on_control(name: &str) -> Option<Self> {
        let lock = ClusterLock::beside().await;
        if !is_elsewhere() {
            return Self::on_own(name, lock, Extent::Control).await;
        }
        if is_left_to_make_test() {
            return None;
        }
        Self::on_elsewhere(name, lock).await
    }

    async fn on_elsewhere(name: &str, lock: ClusterLock) -> Option<Self> {
        let client = Client::try_default().await.unwrap_or_else(|error| panic!("the cluster of KUBECONFIG: {error}"));
        Some(Self::new(client, name, None, lock).await)
    }

    /// Begins a story on the cluster of the tests, with access to its machines: [`Story::cluster`].
    pub async fn begin_on_machines(name: &str) -> Option<Self> {
        Self::on_own(name, ClusterLock::beside().await, Extent::Nodes).await
    }

    /// Like [`Story::begin_on_machines`], without concurrent stories: it may stop components and has to start them
    /// again.
    pub async fn begin_alone(name: &str) -> Option<Self> {
        Self::on_own(name, ClusterLock::alone().await, Extent::Nodes).await
    }

    async fn on_own(name: &str, lock: ClusterLock, extent: Extent) -> Option<Self> {
        if is_left_to_make_test() {
            return None;
        }
        if is_elsewhere() {
            leave_out("this needs the machines of a cluster, and KUBECONFIG names one that is somebody else's");
            return None;
        }
        let cluster = Cluster::new();
        if let Some(obstacle) = cluster.obstacle() {
            skip(&obstacle);
            return None;
        }
        let used = USED.get_or_init(|| cluster.join(extent).map_err(|error| format!("{error:#}")));
        used.as_ref().unwrap_or_else(|error| panic!("no cluster: {error}"));
        cluster.up(extent).unwrap(); // a story that failed may have left something stopped
        let client = ready::client(&cluster.kubeconfig()).await.unwrap();
        Some(Self::new(client, name, Some(cluster), lock).await)
    }

    async fn new(client: Client, name: &str, cluster: Option<Cluster>, lock: ClusterLock) -> Self {
        let metadata = ObjectMeta { generate_name: Some(format!("{name}-")), ..ObjectMeta::default() };
        let namespace = Namespace { metadata, ..Namespace::default() };
        let made = Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
        let story = Self { client, namespace: made.name_any(), cluster, _lock: lock };
        story.wait_for_object::<ServiceAccount>("default", "what pods need", |_| true).await;
        story
    }

    /// Returns a client of the administrator.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Returns the administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        let of_cluster = self.cluster.as_ref().map(Cluster::kubeconfig);
        of_cluster.unwrap_or_else(|| std::env::var_os("KUBECONFIG").map(PathBuf::from).unwrap_or_default())
    }

    /// Returns the story's namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the cluster of the tests.
    ///
    /// # Panics
    /// If the story runs on another cluster.
    pub fn cluster(&self) -> &Cluster {
        self.cluster.as_ref().expect("begin_on_machines or begin_alone")
    }

    /// Returns an API for objects in the story's namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client(), &self.namespace)
    }

    /// Applies YAML documents like `kubectl apply --server-side`, by default in the story's namespace. Returns the
    /// resulting objects.
    pub async fn apply(&self, yaml: &str) -> Vec<DynamicObject> {
        let mut applied = Vec::new();
        for document in serde_saphyr::from_multiple::<Value>(yaml).unwrap() {
            applied.push(self.apply_one(document).await.unwrap());
        }
        applied
    }

    /// Applies one document; returns the API server's response.
    pub async fn apply_one(&self, document: Value) -> kube::Result<DynamicObject> {
        let object: DynamicObject = serde_json::from_value(document).unwrap();
        let types = object.types.clone().expect("apiVersion and kind");
        let kind = GroupVersionKind::try_from(&types).unwrap();
        // A new kind is not available at once.
        let known = async || discovery::pinned_kind(&self.client, &kind).await.map_err(|error| error.to_string());
        let (resource, capabilities) =
            wait_for(&format!("the kind {}", kind.kind), known, Result::is_ok).await.unwrap();
        let namespace = object.namespace().unwrap_or_else(|| self.namespace.clone());
        let api: Api<DynamicObject> = match capabilities.scope {
            Scope::Cluster => Api::all_with(self.client(), &resource),
            Scope::Namespaced => Api::namespaced_with(self.client(), &namespace, &resource),
        };
        api.patch(&object.name_any(), &PatchParams::apply(FIELD_MANAGER).force(), &Patch::Apply(&object)).await
    }

    /// Waits until an object satisfies a condition, and returns it.
    pub async fn wait_for_object<K>(&self, name: &str, what: &str, wanted: impl Fn(&K) -> bool) -> K
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let api = self.api::<K>();
        wait_for(what, async || api.get_opt(name).await.ok().flatten(), |found| found.as_ref().is_some_and(&wanted))
            .await
            .unwrap()
    }

    /// Waits until a pod is ready.
    pub async fn wait_for_running(&self, pod: &str) -> Pod {
        self.wait_for_object(pod, &format!("{pod} running"), is_ready).await
    }

    /// Waits until a pod's container has printed a text.
    pub async fn wait_for_log(&self, pod: &str, text: &str) -> String {
        let log = async || self.log(pod).await;
        wait_for(&format!("'{text}' in the log of {pod}"), log, |log| log.contains(text)).await
    }

    /// Deletes a pod and waits for its end.
    pub async fn delete_pod(&self, name: &str) {
        let pods = self.api::<Pod>();
        pods.delete(name, &DeleteParams::default().grace_period(0)).await.unwrap();
        wait_for(&format!("no {name}"), async || pods.get_opt(name).await.unwrap(), Option::is_none).await;
    }

    /// Runs a request where the caller can't await, such as in `drop`.
    pub fn ask(&self, what: &str, question: impl AsyncFn(Client) -> anyhow::Result<()> + Sync) {
        if let Err(error) = ready::ask(&self.kubeconfig(), question) {
            eprintln!("{what}: {error:#}");
        }
    }

    /// Deletes a namespace without waiting for its end.
    pub fn delete_namespace(&self, name: &str) {
        self.ask("the namespace stays", async |client| {
            Api::<Namespace>::all(client).delete(name, &DeleteParams::background()).await?;
            Ok(())
        });
    }

    /// Returns the output of a pod's container.
    pub async fn log(&self, pod: &str) -> String {
        self.api::<Pod>().logs(pod, &LogParams::default()).await.unwrap_or_else(|error| error.to_string())
    }

    /// Returns the allocatable number of a resource on a node.
    pub async fn allocatable(&self, node: &str, resource: &str) -> Option<String> {
        let node = Api::<Node>::all(self.client()).get(node).await.unwrap();
        let quantities = node.status.and_then(|status| status.allocatable).unwrap_or_default();
        quantities.get(resource).map(|quantity| quantity.0.clone())
    }

    /// Waits until the kubelet has written the Node's status after that time. One from before its restart proves nothing.
    pub async fn wait_for_status_since(&self, node: &str, since: Timestamp) {
        let nodes = Api::<Node>::all(self.client());
        let written = async || {
            let conditions = nodes.get(node).await.unwrap().status.and_then(|status| status.conditions);
            conditions.unwrap_or_default().into_iter().filter_map(|condition| condition.last_heartbeat_time).max()
        };
        wait_for("a status", written, |written| written.as_ref().is_some_and(|written| written.0 > since)).await;
    }

    /// Waits until a node can allocate that many of a resource.
    pub async fn wait_for_allocatable(&self, node: &str, resource: &str, count: u32) {
        let what = format!("{count} of {resource} on {node}");
        let allocatable = async || self.allocatable(node, resource).await;
        wait_for(&what, allocatable, |found| found.as_deref() == Some(&count.to_string())).await;
    }
}

impl Drop for Story {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.delete_namespace(&self.namespace); // a failed story keeps it for inspection
        }
    }
}

/// Returns whether KUBECONFIG names a cluster that is not the one of the tests.
pub fn is_elsewhere() -> bool {
    std::env::var_os("KUBECONFIG").is_some_and(|named| named != Cluster::new().kubeconfig())
}

/// Returns the phase of a pod, empty before it has one.
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Returns whether all containers of a pod run and are ready.
pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Polls until a value satisfies a condition.
///
/// # Panics
/// With the last value, after 90 s.
pub async fn wait_for<T: Debug>(what: &str, observe: impl AsyncFn() -> T, wanted: impl Fn(&T) -> bool) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let seen = observe().await;
        if wanted(&seen) {
            return seen;
        }
        assert!(Instant::now() < deadline, "never saw {what}, but: {seen:#?}");
        sleep(Duration::from_millis(200)).await;
    }
}
