//! Objects that upstream Akri's agents have left, taken over by ours without deleting anything (rule 65).

use std::collections::BTreeMap;

use akri_api::Instance;
use akri_model::names::{HashInput, HashLength};
use kube::ResourceExt as _;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::ApiResource;
use serde_json::{Value, json};

use crate::support::cluster::wait_for;
use crate::support::cluster_fixture::ClusterFixture;
use crate::support::node::{resource_of, usage};

const NODES: [&str; 2] = ["node-a", "node-b"];

/// Applies as one of upstream's field managers, none of which forces anything.
async fn apply(cluster: &ClusterFixture, manager: &str, name: &str, part: Value) -> Instance {
    let api: Api<DynamicObject> =
        Api::namespaced_with(cluster.story.client(), cluster.story.namespace(), &ApiResource::erase::<Instance>(&()));
    let mut object = json!({"apiVersion": "akri.sh/v0", "kind": "Instance", "metadata": {"name": name}});
    for (field, value) in part.as_object().unwrap() {
        match field.as_str() {
            "metadata" => object["metadata"].as_object_mut().unwrap().extend(value.as_object().unwrap().clone()),
            _ => object[field] = value.clone(),
        }
    }
    let applied = api.patch(name, &PatchParams::apply(manager), &Patch::Apply(object)).await.unwrap();
    applied.try_parse().unwrap()
}

/// The Instance of a shared device as two agents of upstream make it: the spec, a finalizer and the slots each by a manager of
/// their own, no label, no annotation, and keys of used slots only.
async fn left_by_upstream(cluster: &ClusterFixture, configuration: &str, device: &str) -> Instance {
    let hash = HashInput::new(device, true, "").hash(HashLength::Short);
    let name = format!("{configuration}-{hash}");
    let uid = cluster.configurations().get(configuration).await.unwrap().uid().unwrap();
    let owner = json!([{
        "apiVersion": "akri.sh/v0", "kind": "Configuration", "name": configuration, "uid": uid, "controller": true,
        "blockOwnerDeletion": true,
    }]);
    let spec = |node: &str| {
        json!({
            "configurationName": configuration, "cdiName": format!("akri.sh/{configuration}={hash}"), "capacity": 2,
            "shared": true, "nodes": [node], "brokerProperties": {"DEBUG_ECHO_DESCRIPTION": device},
        })
    };
    for node in NODES {
        apply(cluster, node, &name, json!({"metadata": {"ownerReferences": owner}, "spec": spec(node)})).await;
        apply(cluster, &format!("{node}-fin"), &name, json!({"metadata": {"finalizers": [node]}})).await;
    }
    let slots: BTreeMap<String, &str> = [(format!("{name}-1"), "node-b")].into();
    apply(cluster, "dp-node-b", &name, json!({"spec": {"deviceUsage": slots}})).await
}

fn sorted(nodes: &[String]) -> Vec<&str> {
    let mut nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
    nodes.sort_unstable();
    nodes
}

#[tokio::test] // rule 65
async fn instances_of_upstream_are_adopted_and_can_be_left() {
    let Some(mut cluster) = ClusterFixture::begin("upstream").await else { return };
    // Upstream's agents write their finalizers one after the other. A controller that runs meanwhile removes the first one, takes
    // the second for that of an agent that still runs, and pauses.
    cluster.stop_controller();
    cluster.echo(cluster.name(), 2, &["one"], json!({})).await;
    let finalizers = json!({"metadata": {"finalizers": NODES}});
    cluster.configurations().patch(cluster.name(), &PatchParams::default(), &Patch::Merge(finalizers)).await.unwrap();
    let left = left_by_upstream(&cluster, cluster.name(), "one").await;
    assert_eq!((sorted(&left.spec.nodes), left.finalizers().len()), (NODES.to_vec(), 2));
    cluster.start_controller();

    // No pod uses the slot, and it is not to be released meanwhile.
    let long_delay: &[&str] = &["--reclaim-delay-seconds", "120"];
    let [a, b] = NODES.map(|node| cluster.add_with(node, cluster.story.kubeconfig(), long_delay));
    let adopted = |i: &Instance| {
        i.annotations().contains_key("akri.sh/identity") && i.labels().len() == 2 && i.finalizers().is_empty()
    };
    let instance = cluster.wait_for_the_instance("an adopted one", adopted).await;
    assert_eq!(instance.uid(), left.uid());
    assert_eq!(sorted(&instance.spec.nodes), NODES);
    let name = instance.name_any();
    let has_all_slots = |i: &Instance| usage(i) == [(&*format!("{name}-0"), ""), (&*format!("{name}-1"), "node-b")];
    let instance = cluster.wait_for_the_instance("all slots, and the use of one", has_all_slots).await;
    a.offers(&resource_of(&instance), 1).await;
    b.offers(&resource_of(&instance), 2).await;
    let finalizers = async || cluster.configurations().get(cluster.name()).await.unwrap().finalizers().to_vec();
    wait_for("a Configuration without finalizers", finalizers, Vec::is_empty).await;

    // Upstream's managers still own the entries of the nodes, and keep nobody from leaving.
    cluster.echo(cluster.name(), 2, &["another"], json!({})).await;
    let gone = |all: &[Instance]| all.iter().all(|i| i.uid() != left.uid() || i.spec.nodes == ["node-b"]);
    cluster.wait_for_instances("node-a gone from it, node-b at most while its slot is used", gone).await;
}
