//! Writes what brokers of this node report into the status of Instances (rule 39). The admission policy of the chart lets an
//! agent write that of slots that its node uses, and so does this.

use std::collections::BTreeMap;

use akri_api::document::pointer_token;
use akri_kube::json_patch::{add, remove, test};
use akri_model::broker_info::{Files, MAX_OF_INSTANCE};
use akri_model::names::{Key, Usage, slot_name};
use serde_json::{Value, json};

use crate::{ClusterError, ClusterResult};

/// Returns the operations that make an Instance show this information; `None` if it does. Slots of other nodes are left out.
pub(super) fn change(
    object: &Value,
    key: &Key,
    node: &str,
    infos: &BTreeMap<u32, Files>,
) -> ClusterResult<Option<Value>> {
    let shown = object.pointer("/status/brokerInfo").and_then(Value::as_object);
    let usage = object.pointer("/spec/deviceUsage").and_then(Value::as_object);
    let used = |slot: &str| usage.and_then(|usage| usage.get(slot)).and_then(Value::as_str);
    let (mut tests, mut operations, mut after) = (Vec::new(), Vec::new(), shown.cloned().unwrap_or_default());
    for (slot, files) in infos {
        let name = slot_name(&key.name, *slot);
        let Some(user) = used(&name).filter(|user| Usage::read(user).node() == Some(node)) else { continue };
        let info = (!files.is_empty()).then(|| json!(files));
        if after.get(&name) == info.as_ref() {
            continue;
        }
        let path = format!("/status/brokerInfo/{}", pointer_token(&name));
        tests.push(test(&format!("/spec/deviceUsage/{}", pointer_token(&name)), user));
        operations.push(info.as_ref().map_or_else(|| remove(&path), |info| add(&path, info)));
        after.remove(&name);
        after.extend(info.map(|info| (name, info)));
    }
    if operations.is_empty() {
        return Ok(None);
    }
    let bytes = serde_json::to_string(&after).map_or(usize::MAX, |text| text.len());
    if bytes > MAX_OF_INSTANCE {
        let limit = MAX_OF_INSTANCE >> 10;
        let message = format!("brokers of all nodes have reported more than {limit} KiB of one Instance");
        return Err(ClusterError::Refused(message));
    }
    tests.push(test("/metadata/uid", object.pointer("/metadata/uid")));
    if shown.is_none() {
        let version = object.pointer("/metadata/resourceVersion");
        tests.push(test("/metadata/resourceVersion", version));
        // The first info of an Instance makes the map, and the status if there is none.
        operations = vec![match object.get("status").and_then(Value::as_object) {
            Some(_) => add("/status/brokerInfo", after),
            None => add("/status", json!({"brokerInfo": after})),
        }];
    }
    tests.extend(operations);
    Ok(Some(Value::Array(tests)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(status: Value) -> Value {
        let usage = json!({"cam-1-0": "a", "cam-1-1": "C:0:a", "cam-1-2": "b", "cam-1-3": ""});
        json!({"metadata": {"uid": "u", "resourceVersion": "7"}, "spec": {"deviceUsage": usage}, "status": status})
    }

    fn files(text: &str) -> Files {
        [("f".to_owned(), text.to_owned())].into()
    }

    /// Returns the object's brokerInfo afterwards; `None` if nothing is written.
    fn after(status: Value, infos: &[(u32, Files)]) -> Option<Value> {
        let mut object = instance(status);
        let infos = infos.iter().cloned().collect();
        let operations = change(&object, &Key::new("default", "cam-1"), "a", &infos).unwrap()?;
        let operations: json_patch::Patch = serde_json::from_value(operations).unwrap();
        json_patch::patch(&mut object, &operations.0).unwrap();
        Some(object["status"]["brokerInfo"].clone())
    }

    #[test] // rule 39
    fn node_writes_broker_info_of_its_own_slots() {
        let all: Vec<(u32, Files)> = (0..5).map(|slot| (slot, files("new"))).collect();
        let (own, others) = (json!({"f": "new"}), json!({"f": "b"}));
        let expected = json!({"cam-1-0": own, "cam-1-1": own, "cam-1-2": others});
        let shown = json!({"cam-1-0": {"f": "old"}, "cam-1-2": others});
        assert_eq!(after(json!({"brokerInfo": shown}), &all), Some(expected));
    }

    #[test]
    fn first_broker_info_makes_the_map() {
        let expected = Some(json!({"cam-1-0": {"f": "x"}}));
        for status in [Value::Null, json!({"nodes": {}}), json!({"brokerInfo": null})] {
            assert_eq!(after(status.clone(), &[(0, files("x"))]), expected, "{status}");
        }
    }

    #[test]
    fn known_broker_info_is_not_written_again() {
        let shown = json!({"brokerInfo": {"cam-1-0": {"f": "x"}}});
        assert_eq!(after(shown.clone(), &[(0, files("x")), (1, Files::new())]), None);
        assert_eq!(after(shown, &[(0, Files::new())]), Some(json!({})), "a new claim has reported nothing yet");
    }

    #[test]
    fn full_instance_takes_no_more_broker_info() {
        let shown = json!({"brokerInfo": {"cam-1-2": {"f": "x".repeat(MAX_OF_INSTANCE)}}});
        let refused = change(&instance(shown), &Key::new("default", "cam-1"), "a", &[(0, files("x"))].into());
        assert!(matches!(refused, Err(ClusterError::Refused(_))));
    }

    #[test] // rule 39
    fn slot_that_changes_hands_meanwhile_is_not_written() {
        let (mut object, infos) = (instance(Value::Null), [(0, files("x"))].into());
        let operations = change(&object, &Key::new("default", "cam-1"), "a", &infos).unwrap().unwrap();
        object["spec"]["deviceUsage"]["cam-1-0"] = json!("b");
        let operations: json_patch::Patch = serde_json::from_value(operations).unwrap();
        assert!(json_patch::patch(&mut object, &operations.0).is_err());
    }
}
