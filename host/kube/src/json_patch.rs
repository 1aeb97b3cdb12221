//! JSON Patches: their operations, and the API server's answers to conflicts.

use kube::core::Status;
use serde::Serialize;
use serde_json::{Value, json};

/// Returns an operation that lets the patch fail unless a value is there.
pub fn test(path: &str, value: impl Serialize) -> Value {
    json!({"op": "test", "path": path, "value": value})
}

/// Returns an operation that adds a value, or replaces it.
pub fn add(path: &str, value: impl Serialize) -> Value {
    json!({"op": "add", "path": path, "value": value})
}

/// Returns an operation that removes a value that is there.
pub fn remove(path: &str) -> Value {
    json!({"op": "remove", "path": path})
}

/// Returns whether a JSON Patch does not fit the object as it is now: a test failed, or a path does not exist. An object
/// that is invalid, and one that admission denies, have the same code; but those answers name the object or who denies it.
pub fn is_outdated(status: &Status) -> bool {
    let names_nothing = status.details.as_ref().is_none_or(|of| of.name.is_empty() && of.causes.is_empty());
    status.code == 422 && names_nothing && !status.message.contains("denied the request")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test] // rule 10
    fn failed_tests_differ_from_refused_objects() {
        let cause = json!({"reason": "FieldValueInvalid", "message": "Invalid value: 0", "field": "spec.capacity"});
        let invalid = json!({"name": "cam-1", "group": "akri.sh", "kind": "Instance", "causes": [cause]});
        let denied = json!({"name": "cam-1", "group": "akri.sh", "kind": "instances"});
        for (code, message, details, expected) in [
            (422, "the server rejected our request due to an error in our request", json!({}), true),
            (422, "the server rejected our request due to an error in our request", Value::Null, true),
            (422, "Instance.akri.sh \"cam-1\" is invalid: spec.capacity: Invalid value: 0", invalid, false),
            (
                422,
                "instances.akri.sh \"cam-1\" is forbidden: ValidatingAdmissionPolicy 'p' denied request",
                denied,
                false,
            ),
            (422, "admission webhook \"w.example.com\" denied the request: no", Value::Null, false),
            (409, "the object has been modified", Value::Null, false),
        ] {
            let status =
                json!({"status": "Failure", "reason": "Invalid", "code": code, "message": message, "details": details});
            assert_eq!(is_outdated(&serde_json::from_value(status).unwrap()), expected, "{message}");
        }
    }
}
