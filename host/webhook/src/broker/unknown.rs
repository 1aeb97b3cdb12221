//! Fields that the API server dropped, since it does not know them.

use serde_json::Value;

/// The fields of `sent` that `stored` lacks, as paths below `spec`. Empty values may be left out by the API server, and lists
/// of another length were changed by somebody else.
pub(super) fn dropped(sent: &Value, stored: Option<&Value>) -> Vec<String> {
    let mut paths = Vec::new();
    if let Some(stored) = stored {
        compare(sent, stored, "spec", &mut paths);
    }
    paths
}

fn compare(sent: &Value, stored: &Value, path: &str, paths: &mut Vec<String>) {
    match (sent, stored) {
        (Value::Object(sent), Value::Object(stored)) => {
            for (key, value) in sent {
                let path = format!("{path}.{key}");
                match stored.get(key) {
                    Some(stored) => compare(value, stored, &path, paths),
                    None if is_empty(value) => {}
                    None => paths.push(path),
                }
            }
        }
        (Value::Array(sent), Value::Array(stored)) if sent.len() == stored.len() => {
            for (index, (sent, stored)) in sent.iter().zip(stored).enumerate() {
                compare(sent, stored, &format!("{path}[{index}]"), paths);
            }
        }
        _ => {}
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(value) => value.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.iter().all(is_empty),
        Value::Object(fields) => fields.values().all(is_empty),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_was_dropped_is_named() {
        let sent = json!({
            "containers": [{"name": "b", "imag": "b:1", "env": [], "tty": false, "resources": {"limits": {"cpu": "500m"}}}],
            "hostNetwrk": true, "securityContext": {}, "nodeName": "", "tolerations": [{"key": "a"}], "affinity": {"x": null},
        });
        let stored = json!({
            "containers": [{"name": "b", "resources": {"limits": {"cpu": "0.5"}}, "imagePullPolicy": "Always"}],
            "tolerations": [{"key": "a"}, {"key": "added"}],
        });
        let mut paths = dropped(&sent, Some(&stored));
        paths.sort();
        assert_eq!(paths, ["spec.containers[0].imag", "spec.hostNetwrk"]);
        assert!(dropped(&sent, Some(&sent)).is_empty() && dropped(&sent, None).is_empty());
    }
}
