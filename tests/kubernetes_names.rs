//! Names of shared Instances on a real API server: many nodes, one Instance of each device (rule 125).

use std::collections::BTreeSet;

use akri_api::{IDENTITY_ANNOTATION, Instance};
use kube::ResourceExt as _;
use serde_json::json;

use crate::support::cluster_fixture::ClusterFixture;
use crate::support::node::{resource_of, usage};

fn has_both_nodes(instance: &Instance) -> bool {
    instance.spec.nodes.iter().map(String::as_str).collect::<BTreeSet<_>>() == ["node-a", "node-b"].into()
}

fn of<'i>(list: &'i [Instance], device: &str) -> &'i Instance {
    list.iter().find(|instance| instance.spec.broker_properties["DEBUG_ECHO_DESCRIPTION"] == device).unwrap()
}

#[tokio::test] // rule 125, rule 22, rule 27
async fn shared_instances_are_renamed_when_nobody_uses_them() {
    let Some(cluster) = ClusterFixture::begin("names").await else { return };
    let name = cluster.name().to_owned();
    let template = format!("{name}-{{{{DEBUG_ECHO_DESCRIPTION}}}}");
    cluster.echo(&name, 2, &["Used", "Free"], json!({})).await;
    let (a, b) = (cluster.add("node-a"), cluster.add("node-b"));
    let all = |list: &[Instance]| list.len() == 2 && list.iter().all(has_both_nodes);
    let made = cluster.wait_for_instances("two devices of two nodes", all).await;
    let used = of(&made, "Used").clone();
    b.offers(&resource_of(&used), 2).await;
    b.kubelet.admit("pod", "container", &resource_of(&used), 1).await.unwrap();
    a.offers(&resource_of(&used), 1).await;

    cluster.echo(&name, 2, &["Used", "Free"], json!({"instanceName": template})).await;
    let named = |list: &[Instance], device: &str| {
        all(list) && of(list, device).name_any() == format!("{name}-{}", device.to_lowercase())
    };
    let half = cluster.wait_for_instances("the name of the free one", |list| named(list, "Free")).await;
    assert_eq!(of(&half, "Used").uid(), used.uid(), "the one in use is as it was");
    let message = cluster.wait_for_condition(&name, "DiscoveryComplete", "False", "DiscoveryIncomplete").await.message;
    assert!(message.contains(&format!("'{}' keeps its name", used.name_any())), "{message}");
    for member in [&a, &b] {
        member.offers(&format!("akri.sh/{name}-free"), 2).await;
        member.offers(&resource_of(of(&made, "Free")), 0).await;
    }
    a.kubelet.admit("guest", "container", &format!("akri.sh/{name}-free"), 1).await.unwrap();
    b.offers(&format!("akri.sh/{name}-free"), 1).await;

    b.kubelet.remove_pod("pod");
    let both = cluster.wait_for_instances("both names", |list| named(list, "Free") && named(list, "Used")).await;
    let identities = |list: &[Instance]| -> BTreeSet<String> {
        list.iter().map(|instance| instance.annotations()[IDENTITY_ANNOTATION].clone()).collect()
    };
    assert_eq!(identities(&both), identities(&made), "the devices are the same");
    assert!(usage(of(&both, "Used")).iter().all(|(_, user)| user.is_empty()));
    for member in [&a, &b] {
        member.offers(&format!("akri.sh/{name}-used"), 2).await;
    }
    cluster.wait_for_condition(&name, "DiscoveryComplete", "True", "Complete").await;
}
