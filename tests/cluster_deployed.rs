//! Akri as `deploy/` installs it: the image, the rights, an agent on every node and the controller.

use std::path::Path;

use akri_api::Instance;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DeleteParams, ListParams};
use serde_json::json;

use crate::support::cluster::{BUSYBOX, Story, wait_for};
use crate::support::node::resource_of;

const NAMESPACE: &str = "akri-system";

/// Applies `deploy/`, with the image that was just built, and waits until everything runs.
async fn install(story: &Story) {
    story.cluster().load_akri().unwrap();
    for file in ["crds.yaml", "akri.yaml", "handlers.yaml"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(file);
        story.apply(&std::fs::read_to_string(path).unwrap()).await;
    }
    let agents: Api<DaemonSet> = Api::namespaced(story.client(), NAMESPACE);
    let ready = async || agents.get("akri-agent").await.unwrap().status.map(|status| status.number_ready);
    wait_for("two agents", ready, |ready| *ready == Some(2)).await;
    let controllers: Api<Deployment> = Api::namespaced(story.client(), NAMESPACE);
    let ready =
        async || controllers.get("akri-controller").await.unwrap().status.and_then(|status| status.ready_replicas);
    wait_for("a controller", ready, |ready| *ready == Some(1)).await;
}

/// Others' Configurations are none of these agents' business.
async fn uninstall(story: &Story) {
    let namespaces: Api<Namespace> = Api::all(story.client());
    namespaces.delete(NAMESPACE, &DeleteParams::default()).await.unwrap();
    wait_for("no agents", async || namespaces.get_opt(NAMESPACE).await.unwrap(), Option::is_none).await;
}

#[test]
fn the_deployed_handlers_are_the_built_in_ones() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let handlers = ["debug-echo", "onvif", "opcua", "udev"];
    let expected = handlers.map(|name| {
        let manifest = std::fs::read_to_string(root.join("handlers").join(name).join("handler.yaml")).unwrap();
        format!("---\n{manifest}")
    });
    let deployed = std::fs::read_to_string(root.join("deploy/handlers.yaml")).unwrap();
    assert_eq!(deployed, expected.concat(), "run 'make manifests'");
}

#[tokio::test]
async fn a_device_that_two_nodes_see_is_there_for_pods_of_both() {
    let Some(story) = Story::begin_alone("deployed").await else { return };
    install(&story).await;
    let spec = json!({
        "discoveryHandler": {"name": "debugEcho", "discoveryDetails": "descriptions: [lamp]"}, "capacity": 2,
    });
    let configuration = json!({
        "apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": "lamp"}, "spec": spec,
    });
    story.apply_one(configuration).await.unwrap();
    let list = async || story.api::<Instance>().list(&ListParams::default()).await.unwrap().items;
    let found = wait_for("an Instance of two nodes", list, |all| all.len() == 1 && all[0].spec.nodes.len() == 2).await;
    for node in ["node-a", "node-b"] {
        story.wait_for_allocatable(node, &resource_of(&found[0]), 2).await;
        story.wait_for_allocatable(node, "akri.sh/lamp", 1).await;
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": node},
            "spec": {
                "nodeName": node,
                "terminationGracePeriodSeconds": 0,
                "containers": [{
                    "name": "main", "image": BUSYBOX, "command": ["sh", "-c", "env; sleep 100000"],
                    "resources": {"limits": {"akri.sh/lamp": "1"}},
                }],
            },
        });
        story.apply_one(pod).await.unwrap();
        story.wait_for_running(node).await;
        story.wait_for_log(node, "DEBUG_ECHO_DESCRIPTION=lamp").await;
    }
    let used = |all: &Vec<Instance>| {
        let mut used: Vec<&str> = all[0].spec.device_usage.values().map(String::as_str).collect();
        used.sort_unstable();
        used == ["C:0:node-a", "C:0:node-b"]
    };
    wait_for("a slot for each node", list, used).await;
    uninstall(&story).await;
}
