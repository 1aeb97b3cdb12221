//! Brokers of devices that come and go, with agents and the controller on a real API server. Test kubelets
//! hold the devices; nothing runs the Pods.

use akri_api::Instance;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::{Resource as _, ResourceExt as _};
use serde_json::{Value, json};

use crate::support::brokers::{is_going, pod_broker};
use crate::support::cluster::wait_for;
use crate::support::cluster_fixture::ClusterFixture;
use crate::support::node::{is_online, resource_of, used};

async fn pods(cluster: &ClusterFixture) -> Vec<Pod> {
    cluster.story.api::<Pod>().list(&ListParams::default()).await.unwrap().items
}

/// Waits for the only Pod that is not this one.
async fn wait_for_broker(cluster: &ClusterFixture, before: Option<&Pod>) -> Pod {
    let is_new = |pods: &Vec<Pod>| {
        pods.len() == 1 && !is_going(&pods[0]) && before.is_none_or(|before| before.uid() != pods[0].uid())
    };
    wait_for("a broker", async || pods(cluster).await, is_new).await.remove(0)
}

#[tokio::test] // rule 53
async fn unplugged_device_loses_its_broker_and_returns() {
    let Some(cluster) = ClusterFixture::begin("unplugged").await else { return };
    let broker = pod_broker(json!({}));
    cluster.echo(cluster.name(), 1, &["one"], broker.clone()).await;
    let a = cluster.add("node-a");
    let made = cluster.wait_for_the_instance("the device", is_online).await;
    let resource = resource_of(&made);
    a.offers(&resource, 1).await;
    let first = wait_for_broker(&cluster, None).await;
    let admitted = a.kubelet.admit("broker", "main", &resource, 1).await.unwrap();
    cluster
        .wait_for_the_instance("the claim", |instance| used(instance) == ["node-a"] || !used(instance).is_empty())
        .await;
    a.agent.as_ref().unwrap().sees_in_use_in(cluster.story.namespace(), 0, &admitted.ids).await;

    cluster.echo(cluster.name(), 1, &[], broker.clone()).await;
    wait_for("no broker", async || pods(&cluster).await, Vec::is_empty).await;
    let kept = cluster.wait_for_the_instance("a missing device", |instance| !is_online(instance)).await;
    assert!(!used(&kept).is_empty(), "the container has not ended yet");
    a.kubelet.remove_pod("broker");
    cluster.wait_for_instances("no Instance", <[Instance]>::is_empty).await;

    cluster.echo(cluster.name(), 1, &["one"], broker).await;
    let back = cluster.wait_for_the_instance("the device again", is_online).await;
    assert_ne!(back.uid(), made.uid());
    let second = wait_for_broker(&cluster, Some(&first)).await;
    assert_eq!(second.owner_references()[0].uid, back.uid().unwrap());
    a.offers(&resource, 1).await;
    a.kubelet.admit("broker-again", "main", &resource, 1).await.unwrap();
}

#[tokio::test] // rule 51
async fn deletion_ends_in_seconds_without_agents() {
    let Some(cluster) = ClusterFixture::begin("agentless").await else { return };
    let mut more = pod_broker(json!({}));
    more["instanceServiceSpec"] = json!({"ports": [{"port": 80}]});
    cluster.echo(cluster.name(), 2, &["one", "two"], more).await;
    let mut a = cluster.add("node-a");
    let listed = cluster.wait_for_instances("two devices", |list| list.len() == 2).await;
    let resource = resource_of(&listed[0]);
    a.offers(&resource, 2).await;
    a.kubelet.admit("pod", "container", &resource, 1).await.unwrap();
    wait_for("two brokers", async || pods(&cluster).await, |pods| pods.len() == 2).await;
    a.kill();
    let started = std::time::Instant::now();
    cluster.delete(cluster.name()).await;
    wait_for("no broker", async || pods(&cluster).await, Vec::is_empty).await;
    assert!(started.elapsed().as_secs() < 30, "{:?}", started.elapsed());
}

/// Creates an Instance of a Configuration by hand.
async fn create_instance(cluster: &ClusterFixture, namespace: &str, configuration_uid: &str, node: &str) -> Instance {
    let owner = json!({
        "apiVersion": "akri.sh/v0", "kind": "Configuration", "name": "twin", "uid": configuration_uid, "controller": true,
        "blockOwnerDeletion": false,
    });
    let object: Instance = serde_json::from_value(json!({
        "apiVersion": "akri.sh/v0", "kind": "Instance",
        "metadata": {"name": "twin-000001", "ownerReferences": [owner]},
        "spec": {
            "configurationName": "twin", "cdiName": "akri.sh/twin=000001", "capacity": 1, "shared": true, "nodes": [node],
            "deviceUsage": {"twin-000001-0": ""},
        },
    }))
    .unwrap();
    let api: Api<Instance> = Api::namespaced(cluster.story.client(), namespace);
    api.create(&PostParams::default(), &object).await.unwrap()
}

#[tokio::test] // rule 51
async fn equal_names_in_two_namespaces_have_brokers_of_their_own() {
    let Some(cluster) = ClusterFixture::begin("twins").await else { return };
    let other = format!("{}-b", cluster.story.namespace());
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": other}});
    cluster.story.apply_one(object).await.unwrap();
    let namespaces = [cluster.story.namespace().to_owned(), other.clone()];
    let configuration = |namespace: &str, image: &str| -> Value {
        json!({
            "apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": "twin", "namespace": namespace},
            "spec": {
                "discoveryHandler": {"name": "debugEcho", "discoveryDetails": "descriptions: []"},
                "brokerSpec": pod_broker(json!({"image": image}))["brokerSpec"],
            },
        })
    };
    let mut made = Vec::new();
    for (namespace, image) in namespaces.iter().zip(["first:1", "second:1"]) {
        let applied = cluster.story.apply_one(configuration(namespace, image)).await.unwrap();
        made.push(create_instance(&cluster, namespace, &applied.uid().unwrap(), "node-a").await);
    }
    let of = async |namespace: &str| {
        let api: Api<Pod> = Api::namespaced(cluster.story.client(), namespace);
        api.list(&ListParams::default()).await.unwrap().items
    };
    for ((namespace, image), instance) in namespaces.iter().zip(["first:1", "second:1"]).zip(&made) {
        let pods = wait_for("a broker", async || of(namespace).await, |pods| pods.len() == 1).await;
        assert_eq!(pods[0].spec.as_ref().unwrap().containers[0].image.as_deref(), Some(image));
        assert_eq!(pods[0].meta().owner_references.as_ref().unwrap()[0].uid, instance.uid().unwrap());
    }
    cluster.configurations().delete("twin", &DeleteParams::default()).await.unwrap();
    wait_for("no broker", async || of(&namespaces[0]).await, Vec::is_empty).await;
    assert_eq!(of(&other).await.iter().filter(|pod| !is_going(*pod)).count(), 1, "the other one runs on");
    cluster.story.delete_namespace(&other);
}
