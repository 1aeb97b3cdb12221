use proptest::prelude::*;

use super::*;

const TARGET: Target<'_> =
    Target { namespace: "plant", name: "cam-8120fe", uid: "u", configuration: "cam", shared: true };

fn map(value: Value) -> Manifest {
    value.as_object().unwrap().clone()
}

fn pod_spec(value: Value) -> Value {
    pod(&TARGET, &map(value), &Annotations::new(), "node-a", 0).0["spec"].clone()
}

fn resources(list: &Value, index: usize) -> &Value {
    &list[index]["resources"]
}

#[test] // rule 54
fn placeholder_is_replaced_in_all_containers_with_its_quantity() {
    let both = json!({"limits": {PLACEHOLDER: "2", "cpu": "1"}, "requests": {PLACEHOLDER: "2"}});
    let spec = pod_spec(json!({
        "initContainers": [{"name": "init", "resources": {"limits": {PLACEHOLDER: "1"}}}],
        "containers": [{"name": "main", "resources": both}, {"name": "other"}],
    }));
    let expected = json!({"limits": {"akri.sh/cam-8120fe": "2", "cpu": "1"}, "requests": {"akri.sh/cam-8120fe": "2"}});
    assert_eq!(resources(&spec["containers"], 0), &expected);
    assert_eq!(resources(&spec["initContainers"], 0), &json!({"limits": {"akri.sh/cam-8120fe": "1"}}));
    assert!(spec["containers"][1].get("resources").is_none());
}

#[test] // rule 38
fn first_container_gets_the_device_without_placeholder() {
    let one = json!({"akri.sh/cam-8120fe": "1"});
    for resources_before in [json!({}), json!({"resources": null}), json!({"resources": {"limits": null}})] {
        let spec = pod_spec(json!({"containers": [resources_before, {"name": "other"}]}));
        assert_eq!(resources(&spec["containers"], 0), &json!({"limits": one, "requests": one}));
        assert!(spec["containers"][1].get("resources").is_none());
    }
    let cpu = pod_spec(json!({"containers": [{"resources": {"limits": {"cpu": "1"}}}]}));
    assert_eq!(resources(&cpu["containers"], 0)["limits"], json!({"akri.sh/cam-8120fe": "1", "cpu": "1"}));
}

#[test] // rule 38
fn broker_that_names_a_resource_of_akri_gets_no_other() {
    let named = json!({"containers": [{}, {"resources": {"limits": {"akri.sh/cam": "1"}}}]});
    assert!(!needs_instance(&map(named.clone())));
    assert_eq!(pod_spec(named.clone())["containers"], named["containers"]);
    for needs in [json!({}), json!({"containers": [{"resources": {"requests": {PLACEHOLDER: 1}}}]})] {
        assert!(needs_instance(&map(needs)));
    }
}

#[test] // rule 54
fn node_is_required_beside_what_the_user_requires() {
    let here = json!({"key": "metadata.name", "operator": "In", "values": ["node-a"]});
    let terms = |spec: &Value| {
        spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"].clone()
    };
    let with = |terms: Value| {
        let required = json!({"nodeSelectorTerms": terms});
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}})
    };
    assert_eq!(terms(&pod_spec(json!({}))), json!([{"matchFields": [here]}]));
    assert_eq!(terms(&pod_spec(json!({"affinity": {"podAffinity": {}}}))), json!([{"matchFields": [here]}]));
    let zone = json!([{"key": "zone", "operator": "In", "values": ["a"]}]);
    let found = terms(&pod_spec(with(json!([{"matchExpressions": zone}, {"matchFields": zone}]))));
    assert_eq!(
        found,
        json!([{"matchExpressions": zone, "matchFields": [here]}, {"matchFields": [zone[0], here]}]),
        "each of the alternatives"
    );
    assert_eq!(terms(&pod_spec(with(json!([{}])))), json!([{}]), "matches no node, as before");
}

#[test] // rule 51
fn pod_is_named_labelled_and_owned() {
    let annotations =
        [("safe-to-evict", "true"), (BROKER_HASH, "mine")].map(|(key, value)| (key.into(), value.into())).into();
    let (pod, mark) =
        pod(&TARGET, &map(json!({"containers": [], "restartPolicy": "Never"})), &annotations, "node-a", 3);
    assert_eq!(pod["metadata"]["name"], "node-a-cam-8120fe-pod");
    assert_eq!(
        pod["metadata"]["labels"],
        json!({
            "app": "node-a-cam-8120fe-pod", "controller": "akri.sh", "akri.sh/configuration": "cam",
            "akri.sh/instance": "cam-8120fe", "akri.sh/target-node": "node-a",
        })
    );
    assert_eq!(pod["metadata"]["annotations"], json!({"safe-to-evict": "true", BROKER_HASH: mark.text, FAILURES: "3"}));
    let owner = json!({
        "apiVersion": "akri.sh/v0", "kind": "Instance", "name": "cam-8120fe", "uid": "u", "controller": true,
        "blockOwnerDeletion": false,
    });
    assert_eq!(pod["metadata"]["ownerReferences"], json!([owner]));
    assert_eq!(pod["spec"]["restartPolicy"], "Never");
}

#[test] // rule 51
fn pods_of_a_job_are_selected_by_services() {
    let template = json!({"metadata": {"labels": {"mine": "x"}}, "spec": {"containers": [{"name": "c"}]}});
    let (job, _) = job(&TARGET, &map(json!({"template": template, "backoffLimit": 4})), "cam-8120fe-7-job");
    assert_eq!(job["metadata"]["name"], "cam-8120fe-7-job");
    assert_eq!(job["spec"]["backoffLimit"], 4);
    assert_eq!(
        job["spec"]["template"]["metadata"]["labels"],
        json!({
            "mine": "x", "controller": "akri.sh", "akri.sh/configuration": "cam", "akri.sh/instance": "cam-8120fe",
        })
    );
    let limits = &job["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"];
    assert_eq!(limits, &json!({"akri.sh/cam-8120fe": "1"}));
}

/// The Pod that is made of a spec differs from node to node, and may from version to version: that replaces nothing.
#[test] // rule 57, rule 118
fn mark_follows_what_the_user_wrote() {
    let written = |spec: &str| -> Manifest { serde_json::from_str(spec).unwrap() };
    let mark = |spec: &str, node| pod(&TARGET, &written(spec), &Annotations::new(), node, 0).1;
    let one = mark(r#"{"a": 1, "b": [2, {"c": 3, "d": 4}]}"#, "node-a");
    assert_eq!(one.text.len(), 16);
    assert_eq!(one, mark(r#"{"b": [2, {"d": 4, "c": 3}], "a": 1}"#, "node-a"));
    assert_eq!(one.text, mark(r#"{"a": 1, "b": [2, {"c": 3, "d": 4}]}"#, "node-b").text);
    assert_ne!(one.text, mark(r#"{"a": 1, "b": [2, {"c": 3, "d": 5}]}"#, "node-a").text);
    let annotated = |value: &str| {
        let annotations = [("safe-to-evict".to_owned(), value.to_owned())].into();
        pod(&TARGET, &written("{}"), &annotations, "node-a", 0).1.text
    };
    assert!(annotated("true") != annotated("false") && annotated("true") != mark("{}", "node-a").text);
    assert_ne!(spec_hash(&json!([["a"], "b"])), spec_hash(&json!([["a", "b"]])));
    assert_ne!(spec_hash(&json!({"a": "b"})), spec_hash(&json!(["a", "b"])));
    assert_ne!(spec_hash(&json!([12, 3])), spec_hash(&json!([1, 23])));
}

#[test] // rule 118
fn marks_of_earlier_programs_are_of_the_spec_they_were_made_for() {
    let spec = map(json!({"containers": [{"name": "main", "image": "broker:1"}]}));
    let (made, mark) = pod(&TARGET, &spec, &Annotations::new(), "node-a", 0);
    let of_version_0_1 = spec_hash(&made["spec"]);
    assert!([mark.text.as_str(), &of_version_0_1, ""].iter().all(|text| mark.is_of_spec(text)), "{mark:?}");
    let edited = pod(
        &TARGET,
        &map(json!({"containers": [{"name": "main", "image": "broker:2"}]})),
        &Annotations::new(),
        "node-a",
        0,
    )
    .1;
    assert!([&mark.text, &of_version_0_1].iter().all(|text| !edited.is_of_spec(text)));
}

fn any_json() -> impl Strategy<Value = Value> {
    let key = prop::sample::select(vec![
        "containers",
        "initContainers",
        "resources",
        "limits",
        "requests",
        PLACEHOLDER,
        "affinity",
        "nodeAffinity",
        "requiredDuringSchedulingIgnoredDuringExecution",
        "nodeSelectorTerms",
        "matchFields",
        "template",
        "spec",
        "metadata",
        "labels",
    ]);
    let leaf = prop_oneof![Just(Value::Null), any::<bool>().prop_map(Value::from), "[a-z]{0,3}".prop_map(Value::from)];
    leaf.prop_recursive(6, 40, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key.clone().prop_map(str::to_owned), inner, 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    /// Specs are opaque: whatever they hold, nothing panics, and a placeholder in the right place is gone.
    #[test] // rule 54
    fn any_spec_becomes_a_pod_and_a_job(spec in any_json()) {
        let spec = spec.as_object().cloned().unwrap_or_default();
        let (pod, mark) = pod(&TARGET, &spec, &Annotations::new(), "node-a", 0);
        let after = pod["spec"].as_object().unwrap();
        prop_assert!(!containers(after).flat_map(resource_names).any(|name| name == PLACEHOLDER));
        prop_assert!(mark.is_of_spec(&spec_hash(&pod["spec"])));
        prop_assert_eq!(job(&TARGET, &spec, "j").1.text, mark.text);
    }
}
