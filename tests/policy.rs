//! Writes that agents may do, line by line, as `deploy/policy.yaml` has them. API servers before 1.30 have no such
//! policies, so the expressions are evaluated here, with the requests of good agents and of a compromised node.

use std::collections::BTreeMap;
use std::path::Path;

use akri_model::agent_lease;
use cel::{Context, Program, Value as Cel, to_value};
use serde_json::{Value, json};

const AGENT: &str = "system:serviceaccount:akri-system:akri-agent";

/// A ValidatingAdmissionPolicy.
struct Policy(Value);

impl Policy {
    fn named(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/policy.yaml");
        let documents: Vec<Value> = serde_saphyr::from_multiple(&std::fs::read_to_string(path).unwrap()).unwrap();
        let found = documents
            .into_iter()
            .find(|document| document["kind"] == "ValidatingAdmissionPolicy" && document["metadata"]["name"] == name);
        Self(found.unwrap_or_else(|| panic!("no policy '{name}'"))["spec"].clone())
    }

    fn list(&self, field: &str) -> &[Value] {
        self.0[field].as_array().map(Vec::as_slice).unwrap_or_default()
    }

    /// The messages of the validations that do not hold. None: the policy does not match.
    fn denials(&self, request: &Value, old: &Value, new: &Value) -> Option<Vec<String>> {
        let mut context = Context::default();
        for (name, value) in [("request", request), ("oldObject", old), ("object", new)] {
            context.add_variable_from_value(name, to_value(value).unwrap());
        }
        let matches = |condition: &Value| evaluate(&context, &condition["expression"]) == Cel::Bool(true);
        if !self.list("matchConditions").iter().all(matches) {
            return None;
        }
        let mut variables = BTreeMap::new();
        for variable in self.list("variables") {
            context.add_variable_from_value("variables", cel_map(&variables));
            variables.insert(variable["name"].as_str().unwrap(), evaluate(&context, &variable["expression"]));
        }
        context.add_variable_from_value("variables", cel_map(&variables));
        let fails = |validation: &&Value| evaluate(&context, &validation["expression"]) != Cel::Bool(true);
        let message = |validation: &Value| validation["message"].as_str().unwrap().to_owned();
        Some(self.list("validations").iter().filter(fails).map(message).collect())
    }
}

fn cel_map(variables: &BTreeMap<&str, Cel>) -> Cel {
    let entries = variables.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
    entries.collect::<std::collections::HashMap<String, Cel>>().into()
}

fn evaluate(context: &Context<'_, '_>, expression: &Value) -> Cel {
    let expression = expression.as_str().unwrap();
    let program = Program::compile(expression).unwrap_or_else(|error| panic!("{expression}: {error}"));
    program.execute(context).unwrap_or_else(|error| panic!("{expression}: {error}"))
}

fn request(node: &str, operation: &str) -> Value {
    json!({
        "operation": operation,
        "userInfo": {"username": AGENT, "extra": {"authentication.kubernetes.io/node-name": [node]}},
        "dryRun": false,
    })
}

/// A shared device that node-a and node-b see; node-b uses one slot of its three, node-a another.
pub(crate) fn instance() -> Value {
    json!({
        "metadata": {
            "name": "cam-8120fe",
            "labels": {"node.akri.sh/aaaaaaaa": "node-a", "node.akri.sh/bbbbbbbb": "node-b", "team": "video"},
            "annotations": {"akri.sh/identity": "0123", "akri.sh/job": "cam-8120fe-1-job"},
            "finalizers": ["node-a", "node-b"],
            "ownerReferences": [{"apiVersion": "akri.sh/v0", "kind": "Configuration", "name": "cam", "uid": "1", "controller": true}],
        },
        "spec": {
            "configurationName": "cam", "cdiName": "akri.sh/cam=8120fe", "shared": true, "capacity": 3,
            "nodes": ["node-a", "node-b"],
            "deviceUsage": {"cam-8120fe-0": "", "cam-8120fe-1": "C:0:node-b", "cam-8120fe-2": "node-a"},
            "brokerProperties": {"URL": "http://camera"},
        },
    })
}

/// The Instance after a JSON Patch.
fn changed(patch: Value) -> Value {
    let mut object = instance();
    for operation in patch.as_array().unwrap() {
        let path = operation["path"].as_str().unwrap();
        let (parent, key) = path.rsplit_once('/').unwrap();
        let key = key.replace("~1", "/");
        let parent = object.pointer_mut(parent).unwrap_or_else(|| panic!("{path}"));
        match (operation.get("value"), parent) {
            (Some(value), parent) => parent[key.as_str()] = value.clone(),
            (None, Value::Object(fields)) => drop(fields.remove(&key)),
            (None, _) => panic!("{path}"),
        }
    }
    object
}

fn set(path: &str, value: Value) -> Value {
    json!([{"path": path, "value": value}])
}

/// Returns the policy's messages about an update by the agent of a node.
fn update(node: &str, new: &Value) -> Vec<String> {
    Policy::named("akri-agent-instances").denials(&request(node, "UPDATE"), &instance(), new).unwrap()
}

#[track_caller]
fn assert_denied(denials: &[String], message: &str) {
    assert!(denials.len() == 1 && denials[0].starts_with(message), "expected '{message}', not {denials:?}");
}

/// Changes that a node's agent may make.
pub(crate) fn own_changes() -> Vec<(&'static str, Value)> {
    let usage = |slot: u8, usage: &str| set(&format!("/spec/deviceUsage/cam-8120fe-{slot}"), json!(usage));
    vec![
        ("node-a", json!([])),
        ("node-a", usage(0, "node-a")),
        ("node-a", usage(0, "C:12:node-a")),
        ("node-a", usage(0, "R:1b4e:node-a")),
        ("node-a", usage(2, "")),
        ("node-a", usage(2, "C:0:node-a")),
        ("node-b", usage(1, "")),
        // What others used of an Instance that is made again stays theirs (rule 103).
        ("node-a", usage(0, "node-b")),
        ("node-a", usage(0, "C:0:node-b")),
        ("node-a", usage(3, "node-b")),
        ("node-a", set("/spec/capacity", json!(4))),
        ("node-a", set("/spec/deviceUsage/cam-8120fe-3", json!(""))),
        ("node-a", json!([{"path": "/spec/deviceUsage/cam-8120fe-0"}])),
        ("node-a", set("/spec/brokerProperties", json!({"URL": "http://other"}))),
        (
            "node-c",
            json!([
                {"path": "/spec/nodes", "value": ["node-a", "node-b", "node-c"]},
                {"path": "/metadata/labels/node.akri.sh~1cccccccc", "value": "node-c"},
            ]),
        ),
        ("node-c", set("/spec/nodes", json!(["node-c", "node-a", "node-b"]))),
        (
            "node-b",
            json!([{"path": "/spec/nodes", "value": ["node-a"]}, {"path": "/metadata/labels/node.akri.sh~1bbbbbbbb"}]),
        ),
        ("node-b", set("/metadata/finalizers", json!(["node-a"]))),
    ]
}

/// Changes that the agent of node-c, which does not see the device, may not make, with the answers.
pub(crate) fn foreign_changes() -> Vec<(Value, &'static str)> {
    let usage = "spec.deviceUsage: an agent takes free slots";
    vec![
        (set("/spec/nodes", json!(["node-a"])), "spec.nodes: an agent adds"),
        (set("/spec/nodes", json!(["node-a", "node-b", "node-d"])), "spec.nodes: an agent adds"),
        (set("/spec/nodes", json!([])), "spec.nodes: an agent adds"),
        (set("/spec/deviceUsage/cam-8120fe-1", json!("")), usage),
        (set("/spec/deviceUsage/cam-8120fe-1", json!("node-c")), usage),
        (set("/spec/deviceUsage/cam-8120fe-1", json!("C:0:node-c")), usage),
        (set("/spec/deviceUsage/cam-8120fe-1", json!("R:1b4e:node-c")), usage),
        (json!([{"path": "/spec/deviceUsage/cam-8120fe-1"}]), usage),
        (json!([{"path": "/spec/deviceUsage"}]), usage),
        (json!([{"path": "/metadata/labels/node.akri.sh~1aaaaaaaa"}]), "metadata.labels"),
        (set("/metadata/labels/node.akri.sh~1aaaaaaaa", json!("node-c")), "metadata.labels"),
        (set("/metadata/labels/node.akri.sh~1dddddddd", json!("node-d")), "metadata.labels"),
        (set("/metadata/labels/node.akri.sh~1dddddddd", json!("")), "metadata.labels"),
        (set("/metadata/labels/node.akri.sh~1many", json!("node-c")), "metadata.labels"),
        (set("/metadata/labels/team", json!("other")), "metadata.labels"),
        (set("/metadata/annotations/akri.sh~1job", json!("none")), "metadata.annotations"),
        (json!([{"path": "/metadata/annotations/akri.sh~1job"}]), "metadata.annotations"),
        (set("/metadata/annotations/akri.sh~1identity", json!("4567")), "metadata.annotations"),
        (set("/metadata/finalizers", json!(["node-a", "node-b", "mine"])), "metadata.finalizers"),
        (set("/metadata/finalizers", json!(["node-b"])), "metadata.finalizers"),
        (set("/spec/configurationName", json!("other")), "configurationName, cdiName, shared and ownerReferences"),
        (set("/spec/cdiName", json!("akri.sh/other=1")), "configurationName, cdiName"),
        (set("/spec/shared", json!(false)), "configurationName, cdiName"),
        (json!([{"path": "/metadata/ownerReferences"}]), "configurationName, cdiName"),
        (set("/spec/capacity", json!(1)), "spec.capacity and spec.brokerProperties"),
        (set("/spec/brokerProperties/URL", json!("http://evil")), "spec.capacity and spec.brokerProperties"),
    ]
}

#[test] // rule 64, rule 110
fn agent_changes_only_its_part_of_an_instance() {
    for (node, patch) in own_changes() {
        assert_eq!(update(node, &changed(patch.clone())), Vec::<String>::new(), "{node}: {patch}");
    }
    for (patch, message) in foreign_changes() {
        assert_denied(&update("node-c", &changed(patch)), message);
    }
    let policy = Policy::named("akri-agent-instances");
    let mut without_identity = instance();
    without_identity["metadata"]["annotations"].as_object_mut().unwrap().remove("akri.sh/identity");
    assert_eq!(policy.denials(&request("node-a", "UPDATE"), &without_identity, &instance()), Some(Vec::new()));
    // Agents are known by the node of their token.
    let without = json!({"operation": "UPDATE", "userInfo": {"username": AGENT}});
    let other = json!({"operation": "UPDATE", "userInfo": {"username": AGENT, "extra": {"scopes": ["x"]}}});
    for request in [without, other] {
        let denials = policy.denials(&request, &instance(), &instance()).unwrap();
        assert_denied(&denials, "the token of an agent has to say its node");
    }
    let mut other = request("node-c", "UPDATE");
    other["userInfo"]["username"] = json!("system:serviceaccount:akri-system:akri-controller");
    assert_eq!(policy.denials(&other, &instance(), &changed(set("/spec/nodes", json!([])))), None);
}

#[test] // rule 64
fn agent_creates_and_deletes_its_own_instances() {
    let policy = Policy::named("akri-agent-instances");
    let create = |object: &Value| policy.denials(&request("node-a", "CREATE"), &Value::Null, object).unwrap();
    let mut good = instance();
    good["spec"]["nodes"] = json!([]);
    good["spec"]["deviceUsage"] = json!({"cam-8120fe-0": ""});
    good["metadata"] = json!({
        "name": "cam-8120fe", "annotations": {"akri.sh/identity": "0123"},
        "labels": {"node.akri.sh/aaaaaaaa": "node-a"}, "ownerReferences": instance()["metadata"]["ownerReferences"],
    });
    assert_eq!(create(&good), Vec::<String>::new());
    let mut again = good.clone();
    again["spec"]["deviceUsage"] = json!({"cam-8120fe-0": "node-b"});
    assert_eq!(create(&again), Vec::<String>::new(), "what others used of the one before stays theirs");
    for (path, value, message) in [
        ("/spec/nodes", json!(["node-b"]), "spec.nodes"),
        ("/spec/configurationName", json!("other"), "metadata.ownerReferences"),
        ("/metadata/ownerReferences", json!([]), "metadata.ownerReferences"),
        ("/metadata/ownerReferences/0/kind", json!("Deployment"), "metadata.ownerReferences"),
        ("/metadata/labels", json!({"app": "x"}), "metadata.labels"),
        ("/metadata/annotations", json!({"akri.sh/job": "x"}), "metadata.annotations"),
    ] {
        let mut object = good.clone();
        *object.pointer_mut(path).unwrap() = value;
        assert_denied(&create(&object), message);
    }
    let delete_one = |shared: bool, nodes: Value, usage: &str| {
        let mut object = instance();
        object["spec"]["shared"] = json!(shared);
        object["spec"]["nodes"] = nodes;
        object["spec"]["deviceUsage"] = json!({"cam-8120fe-0": "", "cam-8120fe-1": usage});
        policy.denials(&request("node-a", "DELETE"), &object, &Value::Null).unwrap()
    };
    let delete = |nodes, usage| delete_one(true, nodes, usage);
    let both = || json!(["node-a", "node-b"]);
    assert_eq!(delete(both(), ""), [""; 0], "it is named anew"); // rule 125
    assert_denied(&delete_one(false, both(), ""), "an agent deletes an Instance only when");
    assert_denied(&delete(both(), "node-a"), "an agent deletes an Instance only when");
    for (nodes, usage) in
        [(json!([]), ""), (json!(["node-a"]), ""), (json!([]), "C:0:node-a"), (json!([]), "R:1b4e:node-a")]
    {
        assert_eq!(delete(nodes, usage), Vec::<String>::new());
    }
    for (nodes, usage) in [
        (json!(["node-b"]), ""),
        (json!([]), "node-b"),
        (json!(["node-a"]), "C:0:node-b"),
        (json!([]), "R:1b4e:node-b"),
        (json!([]), "C:0"),
    ] {
        assert_denied(&delete(nodes, usage), "an agent deletes an Instance only when");
    }
}

#[test] // rule 39, rule 64
fn agent_writes_its_own_part_of_a_status() {
    let problem = |reason: &str| json!({"reason": reason, "message": "m"});
    let object =
        |nodes: Value, conditions: Value| json!({"spec": {}, "status": {"nodes": nodes, "conditions": conditions}});
    let conditions = json!([{"type": "Online", "status": "True"}]);
    let old = object(json!({"node-a": problem("A"), "node-b": problem("B")}), conditions.clone());
    for kind in ["configurations", "discoveryhandlers", "instances"] {
        let policy = Policy::named(&format!("akri-agent-{kind}-status"));
        let write = |new: &Value| policy.denials(&request("node-a", "UPDATE"), &old, new).unwrap();
        for nodes in [json!({"node-a": problem("C"), "node-b": problem("B")}), json!({"node-b": problem("B")})] {
            assert_eq!(write(&object(nodes, conditions.clone())), Vec::<String>::new());
        }
        for nodes in [
            json!({"node-a": problem("A"), "node-b": problem("C")}),
            json!({"node-a": problem("A")}),
            json!({"node-a": problem("A"), "node-b": problem("B"), "node-c": problem("C")}),
        ] {
            assert_denied(&write(&object(nodes, conditions.clone())), "status.nodes");
        }
        let forged = object(old["status"]["nodes"].clone(), json!([{"type": "Online", "status": "False"}]));
        assert_denied(&write(&forged), "status.conditions");
        let of_handlers = if kind == "discoveryhandlers" { ["digest", "lastResult"].as_slice() } else { &[] };
        for field in ["awaiting", "discoverOn"].iter().chain(of_handlers) {
            let mut forged = old.clone();
            forged["status"][field] = json!(["node-b"]);
            assert_denied(&write(&forged), &format!("status.{field}"));
        }
        let first = json!({"spec": {}, "status": {"nodes": {"node-a": problem("A")}}});
        assert_eq!(policy.denials(&request("node-a", "UPDATE"), &json!({"spec": {}}), &first), Some(Vec::new()));
    }
    let policy = Policy::named("akri-agent-instances-status");
    let spec = json!({"deviceUsage": {"s-0": "node-a", "s-1": "C:0:node-a", "s-2": "node-b", "s-3": ""}});
    let object = |info: Value| json!({"spec": spec, "status": {"brokerInfo": info}});
    let old = object(json!({"s-2": {"f": "b"}, "s-3": {"f": "before"}}));
    let write = |info: Value| policy.denials(&request("node-a", "UPDATE"), &old, &object(info)).unwrap();
    let kept = json!({"s-0": {"f": "x"}, "s-1": {"f": "y"}, "s-2": {"f": "b"}, "s-3": {"f": "before"}});
    assert_eq!(write(kept), Vec::<String>::new());
    assert_eq!(write(json!({"s-2": {"f": "b"}})), Vec::<String>::new(), "what a free slot said may go");
    for info in [
        json!({"s-2": {"f": "x"}, "s-3": {"f": "before"}}),
        json!({"s-3": {"f": "before"}}),
        json!({"s-2": {"f": "b"}, "s-3": {"f": "new"}}),
    ] {
        assert_denied(&write(info), "status.brokerInfo");
    }
}

#[test] // rule 109
fn agent_renews_the_lease_of_its_own_node() {
    let policy = Policy::named("akri-agent-leases");
    let lease = |name: &str, holder: &str| json!({"metadata": {"name": name}, "spec": {"holderIdentity": holder}});
    let of = |node: &str| lease(&agent_lease::name(node), node);
    let former = |node: &str| lease(&agent_lease::former_name(node), node);
    let write =
        |operation: &str, old: &Value, new: &Value| policy.denials(&request("node-a", operation), old, new).unwrap();
    assert_eq!(write("CREATE", &Value::Null, &of("node-a")), Vec::<String>::new());
    assert_eq!(write("UPDATE", &of("node-a"), &of("node-a")), Vec::<String>::new());
    assert_eq!(write("UPDATE", &former("node-a"), &former("node-a")), Vec::<String>::new(), "an agent that is older");
    let given_up = |node: &str| json!({"metadata": {"name": agent_lease::name(node)}, "spec": {}});
    assert_eq!(write("UPDATE", &of("node-a"), &given_up("node-a")), Vec::<String>::new());
    assert_eq!(write("UPDATE", &given_up("node-a"), &of("node-a")), Vec::<String>::new());
    let long = format!("{}-{}", "n".repeat(60), "n.".repeat(96));
    let create = |name: &str| policy.denials(&request(&long, "CREATE"), &Value::Null, &lease(name, &long)).unwrap();
    assert_eq!(create(&agent_lease::name(&long)), Vec::<String>::new(), "a name that is cut off");
    assert_denied(&create("akri-agent-n"), "an agent renews and gives up the Lease");
    let controller = lease("akri-controller", "node-a");
    for (operation, old, new) in [
        ("CREATE", Value::Null, of("node-b")),
        ("CREATE", Value::Null, former("node-a")),
        ("CREATE", Value::Null, lease(&agent_lease::name("node-b"), "node-a")),
        ("CREATE", Value::Null, lease(&agent_lease::former_name("node-b"), "node-a")),
        ("CREATE", Value::Null, lease("akri-agent-node", "node-a")),
        ("CREATE", Value::Null, controller.clone()),
        ("UPDATE", of("node-b"), of("node-b")),
        ("UPDATE", of("node-b"), given_up("node-b")),
        ("UPDATE", given_up("node-b"), lease(&agent_lease::name("node-b"), "node-a")),
        ("UPDATE", given_up("node-b"), given_up("node-b")),
        ("UPDATE", of("node-b"), lease("akri-agent-node-b", "node-a")),
        ("UPDATE", lease("akri-controller", "controller-1"), controller),
    ] {
        assert_denied(&write(operation, &old, &new), "an agent renews and gives up the Lease");
    }
}

#[test] // rule 64
fn webhook_creates_dry_runs_only() {
    let policy = Policy::named("akri-webhook");
    let request = |dry_run: bool, account: &str| json!({"operation": "CREATE", "dryRun": dry_run, "userInfo": {"username": format!("system:serviceaccount:akri-system:{account}")}});
    let ask = |request: Value| policy.denials(&request, &Value::Null, &json!({}));
    assert_eq!(ask(request(true, "akri-webhook")), Some(Vec::new()));
    assert_denied(&ask(request(false, "akri-webhook")).unwrap(), "the webhook of Akri creates nothing but dry runs");
    assert_eq!(ask(request(false, "akri-controller")), None);
}
