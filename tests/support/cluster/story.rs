//! A story's place on the cluster: a client and a namespace of its own.

use std::fmt::Debug;
use std::fs::File;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, ServiceAccount};
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
use crate::skip::skip;

/// How long a story waits for something. Long, because only a test that fails waits that long.
const DEADLINE: Duration = Duration::from_secs(90);

/// Who changes objects here.
const FIELD_MANAGER: &str = "story";

/// Many stories beside each other, or one that stops what the others need. Another run in the same folder is kept from
/// that by a lock of a file.
static TURN: RwLock<()> = RwLock::const_new(());

/// This run's use of the cluster in `target/`, or why there can't be one.
static USED: OnceLock<Result<Use, String>> = OnceLock::new();

enum Turn {
    Beside { _guard: RwLockReadGuard<'static, ()>, _others: File },
    Alone { _guard: RwLockWriteGuard<'static, ()>, _others: File },
}

impl Turn {
    async fn beside() -> Self {
        let _guard = TURN.read().await;
        let others = spawn_blocking(|| Cluster::new().lock_shared("turn"));
        Self::Beside { _guard, _others: others.await.unwrap().unwrap() }
    }

    async fn alone() -> Self {
        let _guard = TURN.write().await;
        let others = spawn_blocking(|| Cluster::new().lock("turn"));
        Self::Alone { _guard, _others: others.await.unwrap().unwrap() }
    }
}

/// A story on a cluster. Its namespace is deleted when it ends well.
pub struct Story {
    client: Client,
    namespace: String,
    cluster: Option<Cluster>,
    _turn: Turn,
}

impl Story {
    /// On the cluster that KUBECONFIG names, else on that of the tests. None, with the reason, if there is neither.
    pub async fn begin(name: &str) -> Option<Self> {
        let turn = Turn::beside().await;
        if !is_elsewhere() {
            return Self::on_own(name, turn).await;
        }
        let client = Client::try_default().await.unwrap_or_else(|error| panic!("the cluster of KUBECONFIG: {error}"));
        Some(Self::new(client, name, None, turn).await)
    }

    /// On the cluster of the tests, whose machines it can use: [`Story::cluster`].
    pub async fn begin_on_machines(name: &str) -> Option<Self> {
        Self::on_own(name, Turn::beside().await).await
    }

    /// The same without other stories: it may stop components and has to start them again.
    pub async fn begin_alone(name: &str) -> Option<Self> {
        Self::on_own(name, Turn::alone().await).await
    }

    async fn on_own(name: &str, turn: Turn) -> Option<Self> {
        if is_elsewhere() {
            eprintln!(
                "skipped: this needs the machines of a cluster, and KUBECONFIG names one that is somebody else's"
            );
            return None;
        }
        let cluster = Cluster::new();
        if let Some(obstacle) = cluster.obstacle() {
            skip(&obstacle);
            return None;
        }
        let used = USED.get_or_init(|| cluster.join(Extent::Nodes).map_err(|error| format!("{error:#}")));
        used.as_ref().unwrap_or_else(|error| panic!("no cluster: {error}"));
        cluster.up(Extent::Nodes).unwrap(); // a story that failed may have left something stopped
        let client = ready::client(&cluster.kubeconfig()).await.unwrap();
        Some(Self::new(client, name, Some(cluster), turn).await)
    }

    async fn new(client: Client, name: &str, cluster: Option<Cluster>, turn: Turn) -> Self {
        let metadata = ObjectMeta { generate_name: Some(format!("{name}-")), ..ObjectMeta::default() };
        let namespace = Namespace { metadata, ..Namespace::default() };
        let made = Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
        let story = Self { client, namespace: made.name_any(), cluster, _turn: turn };
        story.wait_for_object::<ServiceAccount>("default", "what pods need", |_| true).await;
        story
    }

    /// A client of the administrator.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        let of_cluster = self.cluster.as_ref().map(Cluster::kubeconfig);
        of_cluster.unwrap_or_else(|| std::env::var_os("KUBECONFIG").map(PathBuf::from).unwrap_or_default())
    }

    /// The story's namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The cluster of the tests.
    ///
    /// # Panics
    /// If the story began on any cluster.
    pub fn cluster(&self) -> &Cluster {
        self.cluster.as_ref().expect("begin_on_machines or begin_alone")
    }

    /// Objects of a kind in the story's namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client(), &self.namespace)
    }

    /// Applies YAML documents, as `kubectl apply --server-side` does; what is namespaced and names no namespace goes to the
    /// story's. Returns what the API server made of them.
    pub async fn apply(&self, yaml: &str) -> Vec<DynamicObject> {
        let mut applied = Vec::new();
        for document in serde_saphyr::from_multiple::<Value>(yaml).unwrap() {
            applied.push(self.apply_one(document).await.unwrap());
        }
        applied
    }

    /// The same for one document, with the API server's word.
    pub async fn apply_one(&self, document: Value) -> kube::Result<DynamicObject> {
        let object: DynamicObject = serde_json::from_value(document).unwrap();
        let types = object.types.clone().expect("apiVersion and kind");
        let kind = GroupVersionKind::try_from(&types).unwrap();
        // A kind that was just defined takes a moment to be known.
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

    /// Waits until an object of the story's namespace is as wanted, and returns it.
    pub async fn wait_for_object<K>(&self, name: &str, what: &str, wanted: impl Fn(&K) -> bool) -> K
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let api = self.api::<K>();
        wait_for(what, async || api.get_opt(name).await.ok().flatten(), |found| found.as_ref().is_some_and(&wanted))
            .await
            .unwrap()
    }

    /// Waits until a pod runs and is ready.
    pub async fn wait_for_running(&self, pod: &str) -> Pod {
        self.wait_for_object(pod, &format!("{pod} running"), is_ready).await
    }

    /// Waits until a pod's container has printed something.
    pub async fn wait_for_log(&self, pod: &str, text: &str) -> String {
        let log = async || self.log(pod).await;
        wait_for(&format!("'{text}' in the log of {pod}"), log, |log| log.contains(text)).await
    }

    /// Deletes a pod and waits until it is gone.
    pub async fn delete_pod(&self, name: &str) {
        let pods = self.api::<Pod>();
        pods.delete(name, &DeleteParams::default().grace_period(0)).await.unwrap();
        wait_for(&format!("no {name}"), async || pods.get_opt(name).await.unwrap(), Option::is_none).await;
    }

    /// Asks the API server where nothing can be awaited, such as at the end of something.
    pub fn ask(&self, what: &str, question: impl AsyncFn(Client) -> anyhow::Result<()> + Sync) {
        if let Err(error) = ready::ask(&self.kubeconfig(), question) {
            eprintln!("{what}: {error:#}");
        }
    }

    /// Deletes a namespace, but does not wait for its end.
    pub fn delete_namespace(&self, name: &str) {
        self.ask("the namespace stays", async |client| {
            Api::<Namespace>::all(client).delete(name, &DeleteParams::background()).await?;
            Ok(())
        });
    }

    /// What a pod's container has printed.
    pub async fn log(&self, pod: &str) -> String {
        self.api::<Pod>().logs(pod, &LogParams::default()).await.unwrap_or_else(|error| error.to_string())
    }

    /// How many of a resource a node can give, as its kubelet told the API server.
    pub async fn allocatable(&self, node: &str, resource: &str) -> Option<String> {
        let node = Api::<Node>::all(self.client()).get(node).await.unwrap();
        let quantities = node.status.and_then(|status| status.allocatable).unwrap_or_default();
        quantities.get(resource).map(|quantity| quantity.0.clone())
    }

    /// Waits until a node can give that many of a resource.
    pub async fn wait_for_allocatable(&self, node: &str, resource: &str, count: u32) {
        let what = format!("{count} of {resource} on {node}");
        let allocatable = async || self.allocatable(node, resource).await;
        wait_for(&what, allocatable, |found| found.as_deref() == Some(&count.to_string())).await;
    }
}

impl Drop for Story {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.delete_namespace(&self.namespace); // else somebody may want to look
        }
    }
}

/// Whether KUBECONFIG names a cluster that is not the one of the tests.
pub fn is_elsewhere() -> bool {
    std::env::var_os("KUBECONFIG").is_some_and(|named| named != Cluster::new().kubeconfig())
}

/// The phase of a pod, empty before it has one.
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Whether all containers of a pod run and are ready.
pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Looks until what is seen is as wanted.
///
/// # Panics
/// With what was seen last, if that takes more than 90 s.
pub async fn wait_for<T: Debug>(what: &str, look: impl AsyncFn() -> T, wanted: impl Fn(&T) -> bool) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let seen = look().await;
        if wanted(&seen) {
            return seen;
        }
        assert!(Instant::now() < deadline, "never saw {what}, but: {seen:#?}");
        sleep(Duration::from_millis(200)).await;
    }
}
