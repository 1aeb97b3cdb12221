//! Discovery on a few nodes for all, on a real API server (rule 126).

use std::collections::BTreeSet;

use akri_api::{Instance, condition};
use akri_grpc::discovery::DeviceSpec;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};

use crate::support::cluster::wait_for;
use crate::support::cluster_fixture::{ClusterFixture, Member};
use crate::support::node::{is_online, resource_of, usage};
use crate::support::remote::{Answer, Handler, devices};

/// The label of the nodes that a story selects.
const LABEL: &str = "akri-story";

/// Three nodes, each with a handler that sees the same camera.
struct Nodes {
    members: Vec<Member>,
    cameras: Vec<Handler>,
}

impl Nodes {
    async fn start(cluster: &ClusterFixture) -> Self {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-c"}});
        cluster.story.apply_one(node).await.unwrap();
        let members: Vec<Member> = ["node-a", "node-b", "node-c"].map(|name| cluster.add(name)).into();
        let mut cameras = Vec::new();
        for member in &members {
            // Another name in each story: the Configuration of the last one may not have gone yet.
            let camera = Handler::start(&member.node, cluster.name(), "cam", &["one"]).shared();
            camera.register(&member.node).await.unwrap();
            cameras.push(camera);
        }
        Self { members, cameras }
    }

    /// Returns the numbers of the nodes whose handlers were called.
    fn asked(&self) -> Vec<usize> {
        (0..self.cameras.len()).filter(|number| !self.cameras[*number].calls().is_empty()).collect()
    }

    fn number(&self, name: &str) -> usize {
        self.members.iter().position(|member| member.name == name).unwrap()
    }

    /// Waits until all nodes but those of these numbers offer that many slots.
    async fn offer(&self, resource: &str, count: usize, except: &[usize]) {
        for (_, member) in self.members.iter().enumerate().filter(|(number, _)| !except.contains(number)) {
            member.offers(resource, count).await;
        }
    }
}

async fn label(cluster: &ClusterFixture, node: &str, value: Option<&str>) {
    let nodes: Api<Node> = Api::all(cluster.story.client());
    let patch = Patch::Merge(json!({"metadata": {"labels": {LABEL: value}}}));
    nodes.patch(node, &PatchParams::default(), &patch).await.unwrap();
}

fn spec(cluster: &ClusterFixture, count: usize) -> Value {
    json!({
        "discoveryHandler": {"name": cluster.name()}, "capacity": 3, "offlineGracePeriod": "0s",
        "discoverOn": {"count": count, "nodeSelector": {LABEL: cluster.name()}},
    })
}

/// Waits until a number of nodes run discovery, without `gone`, and returns them.
async fn chosen(cluster: &ClusterFixture, count: usize, gone: &str) -> Vec<String> {
    let status = async || cluster.configurations().get(cluster.name()).await.ok()?.status;
    let nodes = async || status().await.map(|status| status.discover_on).unwrap_or_default();
    let wanted = |nodes: &Vec<String>| nodes.len() == count && nodes.iter().all(|node| node != gone);
    wait_for("the nodes that run discovery", nodes, wanted).await
}

/// Returns the time since which a device is as online as it is.
fn online_since(instance: &Instance) -> Time {
    let conditions = &instance.status.as_ref().unwrap().conditions;
    condition::find(conditions, "Online").unwrap().last_transition_time.clone()
}

#[tokio::test] // rule 126
async fn node_that_discovers_is_replaced_and_no_device_lost() {
    let Some(cluster) = ClusterFixture::begin("few").await else { return };
    let mut nodes = Nodes::start(&cluster).await;
    cluster.configure(cluster.name(), spec(&cluster, 1)).await;
    let nobody = cluster.wait_for_condition(cluster.name(), "Ready", "Unknown", "NoMatchingNode").await;
    assert!(nobody.message.contains("discoverOn.nodeSelector"), "{}", nobody.message);
    assert!(nodes.asked().is_empty(), "none is selected");

    for node in ["node-a", "node-b", "node-c"] {
        label(&cluster, node, Some(cluster.name())).await;
    }
    let is_served = |i: &Instance| i.spec.nodes.len() == 3 && is_online(i);
    let made = cluster.wait_for_the_instance("all nodes", is_served).await;
    let resource = resource_of(&made);
    nodes.offer(&resource, 3, &[]).await;
    cluster.wait_for_condition(cluster.name(), "Ready", "True", "Discovered").await;
    let first = chosen(&cluster, 1, "").await.remove(0);
    let asking = nodes.number(&first);
    assert_eq!(nodes.asked(), [asking], "one node asks");
    let user = (asking + 1) % 3;
    let admitted = nodes.members[user].kubelet.admit("pod", "container", &resource, 1).await.unwrap();
    assert!(admitted.response.envs.contains_key("NAME"), "{:?}", admitted.response.envs);
    nodes.offer(&resource, 2, &[user]).await;

    nodes.members[asking].stop();
    let second = chosen(&cluster, 1, &first).await.remove(0);
    let next = nodes.number(&second);
    wait_for("a call of the next node", async || nodes.asked().contains(&next), |asked| *asked).await;
    cluster.wait_for_condition(cluster.name(), "Ready", "True", "Discovered").await;
    let kept = cluster.wait_for_the_instance("the Instance", is_online).await;
    assert_eq!((kept.uid(), online_since(&kept)), (made.uid(), online_since(&made)), "it was online all the time");
    assert_eq!(usage(&kept).iter().filter(|(_, user)| user.is_empty()).count(), 2, "{:?}", usage(&kept));
    nodes.offer(&resource, 2, &[user, asking]).await;

    // The device goes. Those that serve it go by what the one node says, and it stays until the last container has ended.
    nodes.members[asking].start();
    nodes.cameras[next].sees(&[]).await;
    let left: BTreeSet<&str> = [user, next].map(|number| nodes.members[number].name).into();
    let is_left =
        |i: &Instance| !is_online(i) && i.spec.nodes.iter().map(String::as_str).collect::<BTreeSet<_>>() == left;
    cluster.wait_for_the_instance("the node that uses it, and the one that misses it", is_left).await;
    nodes.members[user].kubelet.remove_pod("pod");
    cluster.wait_for_instances("no Instance", |all| all.is_empty()).await;
    nodes.cameras[next].sees(&["one"]).await;
    let again = cluster.wait_for_the_instance("all nodes", is_served).await;
    assert_ne!(again.uid(), made.uid());
    nodes.offer(&resource, 3, &[]).await;
    assert!(nodes.asked().len() == 2 && chosen(&cluster, 1, "").await == [second], "{:?}", nodes.asked());

    // The node that runs discovery renames; the others make nothing of their own, and take what it makes (rule 125).
    for template in [Some(format!("{}-front", cluster.name())), None] {
        let mut named = spec(&cluster, 1);
        named["instanceName"] = json!(template);
        cluster.configure(cluster.name(), named).await;
        let is_renamed = |i: &Instance| is_served(i) && i.name_any().ends_with("-front") == template.is_some();
        let renamed = cluster.wait_for_the_instance("the other name on all nodes", is_renamed).await;
        nodes.offer(&resource_of(&renamed), 3, &[]).await;
    }
}

#[tokio::test] // rule 126
async fn devices_are_served_by_selected_nodes_only() {
    let Some(cluster) = ClusterFixture::begin("selected").await else { return };
    for node in ["node-a", "node-b"] {
        label(&cluster, node, Some(cluster.name())).await;
    }
    let nodes = Nodes::start(&cluster).await;
    cluster.configure(cluster.name(), spec(&cluster, 9)).await;
    assert_eq!(chosen(&cluster, 2, "").await, ["node-a", "node-b"], "more than there are: all");
    let made = cluster.wait_for_the_instance("both nodes", |i| i.spec.nodes.len() == 2).await;
    let resource = resource_of(&made);
    nodes.offer(&resource, 3, &[2]).await;
    cluster.configure(cluster.name(), spec(&cluster, 1)).await;
    let first = chosen(&cluster, 1, "").await.remove(0);
    let other = 1 - nodes.number(&first);

    label(&cluster, nodes.members[other].name, None).await;
    label(&cluster, "node-c", Some(cluster.name())).await;
    let moved = |i: &Instance| i.spec.nodes.len() == 2 && i.spec.nodes.contains(&"node-c".to_owned());
    let kept = cluster.wait_for_the_instance("the nodes that are selected now", |i| moved(i) && is_online(i)).await;
    assert_eq!(kept.uid(), made.uid());
    nodes.offer(&resource, 3, &[other]).await;
    nodes.members[other].offers(&resource, 0).await;

    // A device with files of one node can't be served by another.
    let mut local = devices(&["one", "two"]);
    let path = || "/dev/ttyUSB99".to_owned();
    local[1].device_specs.push(DeviceSpec { host_path: path(), container_path: path(), permissions: "rw".into() });
    nodes.cameras[nodes.number(&first)].answer(Answer::Devices(local)).await;
    let incomplete =
        cluster.wait_for_condition(cluster.name(), "DiscoveryComplete", "False", "DiscoveryIncomplete").await;
    assert!(incomplete.message.contains("discoverOn is for devices of the network"), "{}", incomplete.message);
    assert_eq!(cluster.list().await.len(), 1, "it has no Instance");
}
