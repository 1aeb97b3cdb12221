//! The HTTP endpoints of the agent and the controller: liveness, readiness and metrics.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;

use k8s_openapi::api::core::v1::Event;
use serde_json::json;

use crate::support::brokers::{Brokers, pod_broker, start_controller};
use crate::support::cluster::wait_for as wait_for_cluster;
use crate::support::kubelet::Kubelet;
use crate::support::node::{Node, wait_for};

/// The status line and the rest of an answer; empty while nobody answers.
pub fn get(address: SocketAddr, path: &str) -> (String, String) {
    let ask = || {
        let mut stream = TcpStream::connect(address)?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map(|_| answer)
    };
    let answer: String = ask().unwrap_or_default();
    let (status, rest) = answer.split_once("\r\n").unwrap_or_default();
    (status.to_owned(), rest.to_owned())
}

#[tokio::test]
async fn controller_serves_health_and_metrics() {
    let Some(mut site) = Brokers::begin_without_controller("served").await else { return };
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let namespace = site.namespace().to_owned();
    let flags = ["--namespace", &namespace, "--listen", &address.to_string()];
    site.controller = Some(start_controller(&site.story.kubeconfig(), &flags, &namespace));
    let is_ok = |(status, _): &(String, String)| status == "HTTP/1.1 200 OK";
    wait_for("life", || get(address, "/healthz"), is_ok).await;
    wait_for("readiness", || get(address, "/readyz"), is_ok).await;
    let node = site.node("a").await;
    let cam = site.configure("cam", pod_broker(json!({"imagePullPolicy": "Sometimes"}))).await;
    let made = site.instance(&cam, "000001", &[&node]).await;
    site.wait_for_instance_condition("cam-000001", "False", "Refused").await;
    for line in [
        r#"akri_controller_reconciles_total{kind="Configuration",result="Succeeded"} "#,
        r#"akri_controller_reconciles_total{kind="Instance",result="Failed"} "#,
        "akri_controller_reconcile_duration_seconds_count ",
        "akri_controller_queue_length ",
        "akri_controller_leads 1",
    ] {
        let has_line = |(_, body): &(String, String)| body.lines().any(|expected| expected.starts_with(line));
        wait_for(line, || get(address, "/metrics"), has_line).await;
    }
    let events = async || site.list::<Event>().await;
    let refused =
        |event: &Event| event.reason.as_deref() == Some("Refused") && event.involved_object.uid == made.metadata.uid;
    wait_for_cluster("the event", events, |events| events.iter().any(refused)).await;
}

#[tokio::test]
async fn health_and_metrics_are_served_on_a_free_address() {
    let node = Node::new();
    let kubelet = Kubelet::start(&node.path("kubelet"));
    node.write_echo("cam", 1, &["one"]);
    node.write_configuration("bad", "udev", "      udevRule: []\n", "");
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let agent = node.start_with(&["--listen", &address.to_string()]);
    let is_ok = |(status, _): &(String, String)| status == "HTTP/1.1 200 OK";
    wait_for("life", || get(address, "/healthz"), is_ok).await;
    wait_for("readiness", || get(address, "/readyz"), is_ok).await;
    kubelet.wait_for("the camera", |view| view.resource("akri.sh/cam").allocatable() == 1).await;
    kubelet.admit("pod", "container", "akri.sh/cam", 1).await.unwrap();
    for line in [
        r#"akri_discovery_rounds_total{handler="debugEcho",result="Discovered"} "#,
        r#"akri_discovery_rounds_total{handler="udev",result="InvalidDetails"} 1"#,
        r#"akri_discovery_round_duration_seconds_count{handler="debugEcho"} "#,
        r#"akri_instances{namespace="default",configuration="cam"} 1"#,
        r#"akri_instances_online{namespace="default",configuration="cam"} 1"#,
        r#"akri_configuration_ready{namespace="default",configuration="cam"} 1"#,
        r#"akri_configuration_complete{namespace="default",configuration="cam"} 1"#,
        r#"akri_configuration_ready{namespace="default",configuration="bad"} 0"#,
        "akri_handlers_loading 0",
        "akri_resources_unregistered 0",
        r#"akri_claims_total{resource="configuration",result="Granted"} 1"#,
        "akri_plugin_registrations_total 3",
        "akri_allocate_duration_seconds_count 1",
    ] {
        let has_line = |(_, body): &(String, String)| body.lines().any(|expected| expected.starts_with(line));
        wait_for(line, || get(address, "/metrics"), has_line).await;
    }
    assert!(get(address, "/elsewhere").0.contains("404"));

    let other = Node::new();
    let [manifests, state, kubelet] =
        ["manifests", "state", "kubelet"].map(|name| other.path(name).display().to_string());
    let flags = ["agent", "--local", &manifests, "--state-dir", &state, "--kubelet-dir", &kubelet, "--listen"];
    let output = other.akri(&[&flags[..], &[&address.to_string()]].concat());
    let expected = String::from_utf8(output.stderr).unwrap();
    assert!(expected.contains(&format!("error: cannot listen on {address}: ")), "{expected}");
    assert!(expected.ends_with("set another address with --listen\n"), "{expected}");
    assert!(agent.stop());
}

/// Readiness names everything that the agent does not do yet.
#[tokio::test] // rule 93
async fn readyz_names_what_is_missing() {
    let node = Node::new();
    node.write_echo("cam", 1, &["one"]);
    node.write("manifests/broken.yaml", "spec: [");
    let sockets = node.path("kubelet/device-plugins");
    fs::create_dir_all(&sockets).unwrap();
    let mute = UnixListener::bind(sockets.join("kubelet.sock")).unwrap(); // a kubelet that registers nothing
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let _agent = node.start_with(&["--listen", &address.to_string()]);
    let ready = || get(address, "/readyz");
    let lacks = |texts: &'static [&'static str]| {
        move |(status, body): &(String, String)| {
            status.contains(" 503 ") && texts.iter().all(|text| body.contains(text))
        }
    };
    wait_for("all that is missing", ready, lacks(&["broken.yaml", "0 of 2 resources are registered"])).await;
    wait_for("no resource", || get(address, "/metrics"), |(_, body)| body.contains("akri_resources_unregistered 2"))
        .await;
    node.remove("manifests/broken.yaml");
    let registers_nothing =
        |answer: &(String, String)| lacks(&["\r\n0 of 2 resources are registered with the kubelet\n"])(answer);
    wait_for("the resources alone", ready, registers_nothing).await;
    drop(mute);
    fs::remove_file(sockets.join("kubelet.sock")).unwrap();
    wait_for("readiness without a kubelet", ready, |(status, _)| status.contains(" 200 ")).await;
    assert!(get(address, "/metrics").1.contains("akri_resources_unregistered 0"), "nothing to be alarmed about");
    let kubelet = Kubelet::start(&node.path("kubelet"));
    kubelet.wait_for("both resources", |view| view.resources.len() == 2).await;
    wait_for("all registered", || get(address, "/metrics"), |(_, body)| body.contains("akri_resources_unregistered 0"))
        .await;
    wait_for("readiness", ready, |(status, _)| status.contains(" 200 ")).await;
}
