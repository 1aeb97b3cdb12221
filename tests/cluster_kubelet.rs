//! The agent in local mode under a real kubelet, which serves real pods: the device plugin layer without a stand-in.

use std::fs;
use std::os::unix::fs::symlink;

use akri_api::Instance;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::cluster::{BUSYBOX, Story, Worker, is_ready, phase, wait_for};
use crate::support::node::{self, Agent, Node, akri, name_of, resource_of, usage};

/// A node of the cluster with an agent, whose Configurations are files.
struct LocalAgentOnNode<'a> {
    story: &'a Story,
    worker: &'a Worker,
    node: Node,
}

impl<'a> LocalAgentOnNode<'a> {
    /// On `node-a`, which is what [`Node`] tells its agents.
    fn new(story: &'a Story) -> Self {
        let node = Node::new();
        node.make_echo_local();
        fs::remove_dir(node.path("kubelet")).unwrap();
        symlink("/var/lib/kubelet", node.path("kubelet")).unwrap();
        Self { story, worker: &story.cluster().nodes[0], node }
    }

    fn start(&self) -> Agent {
        self.node.start_by(self.worker.command(&akri()), &[])
    }

    /// The one Instance of a Configuration, once its node can give what it has.
    async fn found(&self, configuration: &str, count: u32) -> Instance {
        let is_its = |i: &&Instance| i.spec.configuration_name == configuration;
        let all = self.node.wait_for_instances(configuration, |all| all.iter().any(|i| is_its(&i))).await;
        let instance = all.iter().find(is_its).unwrap().clone();
        self.story.wait_for_allocatable(self.worker.name(), &resource_of(&instance), count).await;
        instance
    }

    /// Makes a pod that asks for one each of some resources, and waits until it runs.
    async fn run(&self, name: &str, resources: &[&str], script: &str) -> Pod {
        self.story.apply_one(pod(name, resources, script)).await.unwrap();
        self.story.wait_for_running(name).await
    }
}

fn pod(name: &str, resources: &[&str], script: &str) -> Value {
    let limits: serde_json::Map<String, Value> = resources.iter().map(|name| (name.to_string(), "1".into())).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "main",
                "image": BUSYBOX,
                "command": ["sh", "-c", format!("{script}; sleep 100000")],
                "resources": {"limits": limits},
                "securityContext": {"capabilities": {"add": ["MKNOD", "SYSLOG"]}},
            }],
        },
    })
}

/// The kernel's log: a device that no container has by itself.
fn write_kernel_log(node: &Node, name: &str, capacity: u32) {
    let rule = "      udevRules:\n      - SUBSYSTEM==\"mem\", KERNEL==\"kmsg\"\n      permissions: r\n";
    node.write_configuration(name, "udev", rule, &format!("  capacity: {capacity}\n"));
}

/// Returns whether the scheduler says that no node has enough of a resource for the pod.
fn waits_for(pod: &Pod, resource: &str) -> bool {
    let unschedulable = format!("Insufficient {resource}");
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.message.as_deref().is_some_and(|m| m.contains(&unschedulable)))
}

const TRY_TO_OPEN: &str = "mknod /tmp/log c 1 11; (: </tmp/log) && echo opened || echo refused";

fn container(pod: &Pod) -> &ContainerStatus {
    &pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0]
}

#[tokio::test]
async fn pod_gets_the_device_and_its_properties_alone() {
    let Some(story) = Story::begin_on_machines("device").await else { return };
    let agent_node = LocalAgentOnNode::new(&story);
    write_kernel_log(&agent_node.node, "device-log", 2);
    agent_node.node.write_echo("device-echo", 1, &["one"]);
    let agent = agent_node.start();
    let (log, echo) = (agent_node.found("device-log", 2).await, agent_node.found("device-echo", 1).await);
    story.wait_for_allocatable("node-a", "akri.sh/device-echo", 1).await;
    assert_eq!(story.allocatable("node-b", &resource_of(&log)).await, None, "no agent there");

    agent_node.run("with", &[&resource_of(&log), "akri.sh/device-echo"], &format!("env; {TRY_TO_OPEN}")).await;
    let printed = story.wait_for_log("with", "opened").await;
    let suffix = name_of(&echo).rsplit_once('-').unwrap().1.to_uppercase();
    for line in
        ["UDEV_DEVNODE=/dev/kmsg", "DEBUG_ECHO_DESCRIPTION=one", &format!("DEBUG_ECHO_DESCRIPTION_{suffix}=one")]
    {
        assert!(printed.lines().any(|printed| printed == line), "no {line} in {printed}");
    }
    agent_node.run("without", &[], TRY_TO_OPEN).await;
    story.wait_for_log("without", "refused").await;

    let slot = format!("{}-0", name_of(&echo));
    let used =
        agent_node.node.wait_for_instance(name_of(&echo), "its use", |i| usage(i) == [(&*slot, "C:0:node-a")]).await;
    agent.sees_in_use(std::slice::from_ref(&slot)).await;
    story.delete_pod("with").await;
    agent_node.node.wait_for_instance(name_of(&used), "the end of its use", |i| usage(i) == [(&*slot, "")]).await;
}

#[tokio::test] // rule 39
async fn container_reports_what_the_agent_may_publish() {
    let Some(story) = Story::begin_on_machines("reports").await else { return };
    let agent_node = LocalAgentOnNode::new(&story);
    let details = "      descriptions:\n      - one\n";
    agent_node.node.write_configuration("reports-echo", "debugEcho", details, "  capacity: 1\n  brokerInfo: true\n");
    let agent = agent_node.start();
    let echo = agent_node.found("reports-echo", 1).await;
    // A character device of this number is a watchdog, which would restart the machine if it were opened and closed.
    let script = "cd $AKRI_BROKER_INFO_DIR && until [ -e .go ]; do sleep 1; done && mkfifo fifo && \
                  mknod watchdog c 10 130 && ln -s /etc/passwd link && \
                  echo 2.1 >.firmware && chown 1000 .firmware && mv .firmware firmware && echo reported";
    agent_node.run("update", &[&resource_of(&echo)], script).await;
    // The agent says once of each directory what it refuses, and has to find it whole.
    let pid = Pid::from_raw(i32::try_from(agent.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let directory = fs::read_dir(agent_node.node.path("state/broker-info")).unwrap().next().unwrap().unwrap();
    fs::write(directory.path().join(".go"), "").unwrap();
    story.wait_for_log("update", "reported").await;
    kill_process(pid, Signal::CONT).unwrap();
    let files = |instance: &Instance| {
        let infos = instance.status.as_ref().map(|status| status.broker_info.clone()).unwrap_or_default();
        infos.into_values().flatten().collect::<Vec<_>>()
    };
    let expected = [("firmware".to_owned(), "2.1\n".to_owned())];
    let shown = agent_node.node.wait_for_instance(name_of(&echo), "the firmware", |i| files(i) == expected).await;
    agent.wait_for_log("'fifo' is not a regular file; 'link' is not a regular file; 'watchdog' is not").await;
    let slot = format!("{}-0", name_of(&echo));
    agent.sees_in_use(std::slice::from_ref(&slot)).await;
    story.delete_pod("update").await;
    let ended = agent_node.node.wait_for_instance(name_of(&shown), "a free slot", |i| usage(i) == [(&*slot, "")]).await;
    assert_eq!(files(&ended), expected);
    let left = || fs::read_dir(agent_node.node.path("state/broker-info")).unwrap().count();
    node::wait_for("no directory", left, |count| *count == 0).await;
}

/// The worked example of Akri's proposal of configuration-level resources: two replicas want two cameras each.
#[tokio::test]
async fn replicas_of_two_cameras_each_wait_for_capacity() {
    let Some(story) = Story::begin_on_machines("replicas").await else { return };
    let agent_node = LocalAgentOnNode::new(&story);
    agent_node.node.write_echo("replicas-cam", 2, &["one", "two"]);
    let _agent = agent_node.start();
    story.wait_for_allocatable("node-a", "akri.sh/replicas-cam", 2).await;
    story.apply_one(replicas()).await.unwrap();
    let pods = async || story.api::<Pod>().list(&ListParams::default()).await.unwrap().items;
    wait_for("two replicas that run", pods, |pods| pods.len() == 2 && pods.iter().all(is_ready)).await;
    for camera in agent_node.node.instances() {
        assert!(usage(&camera).iter().all(|(_, user)| user.starts_with("C:")), "both use {}", name_of(&camera));
    }

    story.api::<Deployment>().delete("viewer", &DeleteParams::default()).await.unwrap();
    wait_for("no replica", pods, Vec::is_empty).await;
    agent_node.node.write_echo("replicas-cam", 2, &["one"]);
    agent_node.node.wait_for_instances("one camera", |all| all.len() == 1).await;
    story.wait_for_allocatable("node-a", "akri.sh/replicas-cam", 1).await;
    story.apply_one(replicas()).await.unwrap();
    let all_wait = |pods: &Vec<Pod>| pods.len() == 2 && pods.iter().all(|pod| waits_for(pod, "akri.sh/replicas-cam"));
    wait_for("replicas that wait", pods, all_wait).await;
    agent_node.node.write_echo("replicas-cam", 2, &["one", "two"]);
    wait_for("two replicas that run again", pods, |pods| pods.len() == 2 && pods.iter().all(is_ready)).await;
}

/// For `node-a`.
fn replicas() -> Value {
    let labels = json!({"app": "viewer"});
    let container = json!({
        "name": "main", "image": BUSYBOX, "command": ["sleep", "100000"],
        "resources": {"limits": {"akri.sh/replicas-cam": "2"}},
    });
    let pod = json!({
        "terminationGracePeriodSeconds": 0, "nodeSelector": {"kubernetes.io/hostname": "node-a"}, "containers": [container],
    });
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "viewer"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    })
}

#[tokio::test]
async fn restarted_kubelet_finds_all_resources_and_keeps_pods() {
    let Some(story) = Story::begin_alone("kubelet").await else { return };
    let agent_node = LocalAgentOnNode::new(&story);
    write_kernel_log(&agent_node.node, "kubelet-log", 2);
    let agent = agent_node.start();
    let resource = resource_of(&agent_node.found("kubelet-log", 2).await);
    let before = agent_node.run("before", &[&resource], "echo").await;

    for round in ["once", "twice"] {
        agent_node.worker.kubelet.kill();
        let since = agent.log().len();
        agent_node.worker.kubelet.start().unwrap();
        let is_seen = |log: &String| log[since..].contains("the kubelet is available");
        node::wait_for("the new kubelet", || agent.log(), is_seen).await;
        story.wait_for_status_since("node-a", Timestamp::now()).await;
        story.wait_for_allocatable("node-a", &resource, 2).await;
        agent_node.run(round, &[&resource], "echo").await;
        story.delete_pod(round).await;
    }
    let stayed = story.wait_for_running("before").await;
    assert_eq!(container(&stayed).container_id, container(&before).container_id);
    assert_eq!(container(&stayed).restart_count, 0);
}

/// A pod with one device that ends by itself, and whose object stays.
fn ending_pod(name: &str, resource: &str, node: &str) -> Value {
    let mut pod = pod(name, &[resource], "");
    pod["spec"]["restartPolicy"] = "Never".into();
    pod["spec"]["nodeName"] = node.into();
    pod["spec"]["containers"][0]["command"] = json!(["sleep", "10"]);
    pod
}

#[tokio::test] // rule 102
async fn slot_of_an_ended_pod_is_free_while_its_object_stays() {
    let Some(story) = Story::begin_on_machines("ended").await else { return };
    let agent_node = LocalAgentOnNode::new(&story);
    write_kernel_log(&agent_node.node, "ended-log", 1);
    let mut agent = agent_node.start();
    let instance = agent_node.found("ended-log", 1).await;
    let (resource, slot) = (resource_of(&instance), format!("{}-0", name_of(&instance)));
    let has_ended = |pod: &Pod| phase(pod) == "Succeeded";
    for name in ["seen", "unseen"] {
        let since = agent.log().len();
        story.apply_one(ending_pod(name, &resource, "node-a")).await.unwrap();
        agent.sees_in_use_since(since, std::slice::from_ref(&slot)).await;
        if name == "unseen" {
            // No poll of the next agent has the container with its slot: the real cgroups tell that it has ended.
            agent.kill();
            story.wait_for_object(name, "a pod that has ended", has_ended).await;
            let command = agent_node.worker.command(&akri());
            agent = agent_node.node.start_by(command, &["--cgroups", "/sys/fs/cgroup"]);
        }
        agent_node.node.wait_for_instance(name_of(&instance), "a free slot", |i| usage(i) == [(&*slot, "")]).await;
        story.wait_for_object(name, "the object of the pod", has_ended).await;
    }
}

#[tokio::test]
async fn killed_agent_takes_no_device_from_a_pod() {
    let Some(story) = Story::begin_on_machines("agent").await else { return };
    let agent_node = LocalAgentOnNode::new(&story);
    write_kernel_log(&agent_node.node, "agent-log", 1);
    let agent = agent_node.start();
    let instance = agent_node.found("agent-log", 1).await;
    let resource = resource_of(&instance);
    let before = agent_node.run("holder", &[&resource], "echo").await;
    agent.kill();
    story.wait_for_allocatable("node-a", &resource, 0).await;
    let _agent = agent_node.start();
    story.wait_for_allocatable("node-a", &resource, 1).await;
    let stayed = story.wait_for_running("holder").await;
    assert_eq!(container(&stayed).container_id, container(&before).container_id);
    assert_eq!(usage(&agent_node.node.instance(name_of(&instance)).unwrap())[0].1, "node-a");
}
