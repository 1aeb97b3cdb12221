//! Services in front of brokers (rule 56).

use akri_api::Configuration;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt as _;
use kube::api::{ObjectMeta, PostParams};
use serde_json::{Value, json};

use crate::support::brokers::{Brokers, names_of, pod_broker};
use crate::support::cluster::wait_for;

fn with_services(port: u16) -> Value {
    let service = json!({"type": "ClusterIP", "ports": [{"name": "grpc", "port": port, "targetPort": 8083}]});
    let mut spec = pod_broker(json!({}));
    spec["instanceServiceSpec"] = service.clone();
    spec["configurationServiceSpec"] = service;
    spec
}

fn address(service: &Service) -> Option<String> {
    service.spec.as_ref()?.cluster_ip.clone()
}

fn port(service: &Service) -> i32 {
    service.spec.as_ref().unwrap().ports.as_ref().unwrap()[0].port
}

#[tokio::test] // rule 56
async fn services_keep_their_address_from_first_to_last_broker() {
    let Some(mut site) = Brokers::begin("services").await else { return };
    let node = site.node("a").await;
    let cam = site.configure("cam", with_services(80)).await;
    site.instance(&cam, "000001", &[&node]).await;
    site.instance(&cam, "000002", &[&node]).await;
    let pods = names_of(&site.wait_for_pods(2).await);
    site.wait_for_instance_condition("cam-000001", "False", "Pending").await;
    assert!(site.list::<Service>().await.is_empty(), "no broker runs yet");
    site.run(&pods[0]).await;
    let services = site.wait_for_names::<Service>(&["cam-000001-svc", "cam-svc"]).await;
    site.run(&pods[1]).await;
    site.wait_for_names::<Service>(&["cam-000001-svc", "cam-000002-svc", "cam-svc"]).await;
    let all = services.iter().find(|service| service.name_any() == "cam-svc").unwrap();
    let selector = all.spec.as_ref().unwrap().selector.clone().unwrap();
    let pod = site.get::<Pod>(&pods[1]).await.unwrap();
    assert!(selector.iter().all(|(label, value)| pod.labels().get(label) == Some(value)), "{selector:?}");
    assert_eq!(all.owner_references()[0].uid, cam.uid().unwrap());

    // A broker that is replaced does not cost its Service the address.
    let before = site.get::<Service>("cam-000001-svc").await.unwrap();
    site.delete::<Pod>(&pods[0]).await;
    site.wait_for_instance_condition("cam-000001", "False", "Pending").await;
    assert_eq!(site.get::<Service>("cam-000001-svc").await.unwrap().uid(), before.uid());

    // Nor does an edit, which replaces no broker.
    let before = site.list::<Service>().await;
    let broker = site.get::<Pod>(&pods[1]).await.unwrap();
    site.configure("cam", with_services(8080)).await;
    let services = async || site.list::<Service>().await;
    let after = wait_for("the new port", services, |all| all.iter().all(|service| port(service) == 8080)).await;
    for (before, after) in before.iter().zip(&after) {
        assert_eq!((before.uid(), address(before)), (after.uid(), address(after)));
        assert_eq!(after.spec.as_ref().unwrap().ports.as_ref().unwrap().len(), 1, "the old port is gone");
    }
    let kept = site.get::<Pod>(&pods[1]).await.unwrap();
    assert_eq!((kept.uid(), &kept.metadata.deletion_timestamp), (broker.uid(), &None));
    let mut without = with_services(8080);
    without.as_object_mut().unwrap().remove("instanceServiceSpec");
    site.configure("cam", without).await;
    site.wait_for_names::<Service>(&["cam-svc"]).await;
    site.configure("cam", with_services(8080)).await;
    site.wait_for_names::<Service>(&["cam-000002-svc", "cam-svc"]).await;

    site.change_instance("cam-000001", json!({"nodes": []})).await;
    site.wait_for_names::<Service>(&["cam-000002-svc", "cam-svc"]).await;
    site.change_instance("cam-000002", json!({"nodes": []})).await;
    site.wait_for_names::<Service>(&[]).await;
}

#[tokio::test] // rule 51
async fn service_of_another_owner_is_left_alone() {
    let Some(mut site) = Brokers::begin("service-taken").await else { return };
    let node = site.node("a").await;
    let service: Service = serde_json::from_value(json!({
        "metadata": {"name": "cam-000001-svc"}, "spec": {"ports": [{"port": 1}], "selector": {"app": "mine"}},
    }))
    .unwrap();
    let mine = site.story.api::<Service>().create(&PostParams::default(), &service).await.unwrap();
    let cam = site.configure("cam", with_services(80)).await;
    site.instance(&cam, "000001", &[&node]).await;
    let pods = names_of(&site.wait_for_pods(1).await);
    site.run(&pods[0]).await;
    let why = site.wait_for_instance_condition("cam-000001", "False", "Refused").await.message;
    assert!(why.contains("belongs to another owner"), "{why}");
    let after = site.get::<Service>("cam-000001-svc").await.unwrap();
    assert_eq!((after.uid(), port(&after)), (mine.uid(), 1));
    assert!(site.get::<Configuration>("cam").await.is_some());
    site.wait_for_names::<Service>(&["cam-000001-svc", "cam-svc"]).await;

    let service =
        Service { metadata: ObjectMeta { name: Some("door-svc".to_owned()), ..ObjectMeta::default() }, ..service };
    site.story.api::<Service>().create(&PostParams::default(), &service).await.unwrap();
    let mut spec = with_services(80);
    spec.as_object_mut().unwrap().remove("instanceServiceSpec");
    let door = site.configure("door", spec).await;
    site.instance(&door, "000001", &[&node]).await;
    site.wait_for_pods(2).await;
    site.run(&format!("{node}-door-000001-pod")).await;
    let why = site.wait_for_configuration_condition("door", "False", "Refused").await.message;
    assert!(why.starts_with("the Service of all brokers: ") && why.contains("belongs to another owner"), "{why}");
    site.delete::<Service>("door-svc").await;
    site.wait_for_configuration_condition("door", "True", "Running").await;
}
