//! The cost of agents for the API server (rule 77).

use std::collections::BTreeMap;

use akri_api::instance_to_model;
use akri_cluster::kubernetes::Kubernetes;
use akri_cluster::{Cluster, Copies, CreateOutcome};
use akri_model::instance::{Instance, Online, Version};
use akri_model::names::{Identity, Key};
use akri_model::slots::free_usage;
use futures::stream::{self, StreamExt as _};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams};
use serde_json::{Value, json};

use crate::support::recorder::Recorder;
use crate::support::site::Site;

/// Nodes that join or leave one Instance at once.
const AT_A_TIME: usize = 5;

/// The nodes of the story. The controller has to know that they exist.
async fn add_node(site: &Site, name: &str) {
    let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    site.story.apply_one(object).await.unwrap();
}

async fn remove_nodes(site: &Site, names: &[String]) {
    let api = Api::<Node>::all(site.story.client());
    for name in names {
        api.delete(name, &DeleteParams::default()).await.unwrap();
    }
}

/// A shared Instance without nodes.
fn instance(site: &Site, key: Key, configuration: &str, configuration_uid: String, capacity: u32) -> Instance {
    Instance {
        cdi_name: format!("akri.sh/{configuration}=abcdef"),
        uid: String::new(),
        version: Version::default(),
        identity: Some(Identity::from_text("0123456789abcdef0123456789abcdef")),
        configuration: configuration.to_owned(),
        configuration_uid,
        capacity,
        properties: BTreeMap::from([("ADDRESS".to_owned(), format!("rtsp://{}.example/stream", site.name()))]),
        shared: true,
        nodes: Vec::new(),
        device_usage: free_usage(&key.name, capacity),
        online: Online::True,
        key,
    }
}

#[tokio::test]
async fn shared_instance_of_50_nodes_stays_below_8_kib() {
    let Some(site) = Site::begin("many").await else { return };
    let spec = json!({"discoveryHandler": {"name": "nobody"}, "capacity": 5});
    site.configure(site.name(), spec).await;
    let uid = site.configurations().get(site.name()).await.unwrap().uid().unwrap();
    let (recorder, state) = (Recorder::default(), tempfile::tempdir().unwrap());
    let names: Vec<String> = (0..50).map(|node| format!("worker-{node:03}")).collect();
    let mut clusters = Vec::new();
    for name in &names {
        add_node(&site, name).await;
        let client = recorder.client(&site.story.kubeconfig(), name).await;
        clusters.push(Kubernetes::start(client, name, state.path()));
    }
    let key = Key::new(site.story.namespace(), format!("{}-abcdef", site.name()));
    let mut wanted = instance(&site, key.clone(), site.name(), uid, 5);
    let CreateOutcome::New(made) = clusters[0].create(&wanted).await.unwrap() else { panic!("it exists already") };
    wanted.uid = made.uid;
    let joins = clusters[1..].iter().map(|cluster| cluster.publish(&wanted, Copies::Later));
    let joined: Vec<_> = stream::iter(joins).buffer_unordered(AT_A_TIME).collect().await;
    assert!(joined.iter().all(Result::is_ok), "{joined:?}");
    let object = site.instances().get(&key.name).await.unwrap();
    assert_eq!(instance_to_model(&object).nodes.len(), 50);
    let value: Value = serde_json::to_value(&object).unwrap();
    let size = value.to_string().len();
    assert!(size < 8 << 10, "{size} bytes: {value}");
    println!("a shared Instance of 50 nodes takes {size} bytes");
    let leaves = clusters.iter().map(|cluster| cluster.delete(&key, &wanted.uid, false));
    let left: Vec<_> = stream::iter(leaves).buffer_unordered(AT_A_TIME).collect().await;
    assert!(left.iter().all(Result::is_ok), "{left:?}");
    assert!(site.instances().get_opt(&key.name).await.unwrap().is_none(), "the last one deletes it");
    remove_nodes(&site, &names).await;
}
