//! ConfigMaps and Secrets of local manifests, as `kubectl apply` takes them (rule 90). What a Secret holds is in none of the
//! errors, and the document it was read from is overwritten.

use std::collections::BTreeMap;

use akri_model::names::Key;
use akri_model::property::Secret;
use akri_model::resolve::{MAX_VALUE, Stored, Values};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;
use zeroize::Zeroize as _;

use crate::manifest::{Manifest, Object, typed};
use crate::validate::{self, FieldError, FieldErrors};

/// Longest key of a ConfigMap or a Secret, as in Kubernetes.
const MAX_KEY: usize = 253;

/// A ConfigMap (`data` and `binaryData` together) or a Secret (`data` and `stringData` together).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataObject {
    /// Namespace and name.
    pub key: Key,
    /// Its values by key.
    pub data: BTreeMap<String, Secret>,
}

/// Returns the content of the ConfigMaps and Secrets among manifests. Of two objects with one name the last one counts.
pub fn values<'a>(manifests: impl IntoIterator<Item = &'a Manifest>) -> Values {
    let value = |manifest: &Manifest| match &manifest.object {
        Object::Data(kind, object) => Some(((*kind, object.key.clone()), Stored::Data(object.data.clone()))),
        Object::Configuration(_) | Object::DiscoveryHandler(_) => None,
    };
    manifests.into_iter().filter_map(value).collect()
}

/// Reads a ConfigMap.
pub(crate) fn config_map(value: &mut Value) -> Result<DataObject, Vec<FieldError>> {
    join_base64(value, "binaryData");
    let object: core::ConfigMap = typed(value).map_err(|errors| errors.into_iter().map(explain).collect::<Vec<_>>())?;
    let texts = object.data.unwrap_or_default().into_iter().map(|(key, text)| ("data", key, text.into_bytes()));
    let bytes = object.binary_data.unwrap_or_default().into_iter().map(|(key, bytes)| ("binaryData", key, bytes.0));
    data_object(&object.metadata, texts.chain(bytes))
}

/// Reads a Secret and overwrites the text that it was read from. `stringData` wins over `data`, as in Kubernetes.
pub(crate) fn secret(mut value: Value) -> Result<DataObject, Vec<FieldError>> {
    join_base64(&mut value, "data");
    let object: Result<core::Secret, _> = typed(&value);
    wipe(&mut value);
    let object = object.map_err(|errors| errors.into_iter().map(without_content).collect::<Vec<_>>())?;
    let bytes = object.data.unwrap_or_default().into_iter().map(|(key, bytes)| ("data", key, bytes.0));
    let texts =
        object.string_data.unwrap_or_default().into_iter().map(|(key, text)| ("stringData", key, text.into_bytes()));
    data_object(&object.metadata, bytes.chain(texts))
}

/// Checks values, each with its field and key. Of two with one key the later one counts; `binaryData` repeats none.
fn data_object(
    metadata: &ObjectMeta,
    values: impl Iterator<Item = (&'static str, String, Vec<u8>)>,
) -> Result<DataObject, Vec<FieldError>> {
    let (mut errors, mut data) = (FieldErrors::default(), BTreeMap::new());
    for (field, key, value) in values {
        check_key(field, &key, &mut errors);
        if data.insert(key.clone(), Secret::new(value)).is_some() && field == "binaryData" {
            errors.add(pointer(field, &key), "is in data, too; keep one");
        }
    }
    if data.values().map(|value| value.reveal().len()).sum::<usize>() > MAX_VALUE {
        errors.add("", "holds more than 1 MiB, the most that Kubernetes takes");
    }
    let key = key_of(metadata, &mut errors);
    errors.check(DataObject { key, data })
}

/// Line ends inside base64 count for nothing, as where the API server reads it: long values are written in many lines.
fn join_base64(value: &mut Value, field: &str) {
    let texts = value.get_mut(field).and_then(Value::as_object_mut).into_iter().flat_map(|map| map.values_mut());
    for text in texts {
        if let Value::String(text) = text {
            text.retain(|c| !matches!(c, '\n' | '\r'));
        }
    }
}

fn explain(error: FieldError) -> FieldError {
    let is_base64 = error.path.starts_with("/binaryData/") && !error.message.starts_with("invalid type");
    if is_base64 { FieldError::new(error.path, "is not base64; plain text goes below data") } else { error }
}

/// Replaces the message about a Secret by one that does not quote it.
fn without_content(error: FieldError) -> FieldError {
    if error.message.starts_with("unknown field") {
        return error;
    }
    let message = match error.path.as_str() {
        path if path.starts_with("/data/") => "is not base64 in a string; plain text goes below stringData",
        path if path.starts_with("/stringData/") => "is not a string; put it in quotes",
        _ => "is not what a Secret has here",
    };
    FieldError::new(error.path, message)
}

/// Overwrites all texts.
fn wipe(value: &mut Value) {
    match value {
        Value::String(text) => text.zeroize(),
        Value::Array(items) => items.iter_mut().for_each(wipe),
        Value::Object(fields) => fields.values_mut().for_each(wipe),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn key_of(metadata: &ObjectMeta, errors: &mut FieldErrors) -> Key {
    let name = metadata.name.clone().unwrap_or_default();
    validate::check_object_name("/metadata/name", &name, errors);
    let namespace = metadata.namespace.clone().unwrap_or_else(|| "default".to_owned());
    validate::check_namespace("/metadata/namespace", &namespace, errors);
    Key::new(namespace, name)
}

fn check_key(field: &str, key: &str, errors: &mut FieldErrors) {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if key.is_empty() || key.len() > MAX_KEY || !key.bytes().all(known) {
        errors.add(pointer(field, key), "is no key: up to 253 letters, digits, '-', '_' and '.'");
    }
}

fn pointer(field: &str, key: &str) -> String {
    format!("/{field}/{}", crate::document::pointer_token(key))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use akri_model::property::Secret as Hidden;
    use akri_model::resolve::ReferenceKind;

    use super::*;
    use crate::manifest::parse;

    const SECRET: &str = "\
apiVersion: v1
kind: Secret
metadata:
  name: cam
  namespace: edge
  labels: {app: cam}
type: Opaque
immutable: true
data:
  user: YWRtaW4=
  both: b2xk
stringData:
  password: hunter2
  both: new
";

    const CONFIG_MAP: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: cam}
data:
  host: cam.example
binaryData:
  key: |
    AAEC
    Aw==
";

    fn parsed(text: &str) -> (Values, Vec<String>) {
        let (manifests, errors) = parse(Path::new("x.yaml"), text);
        (values(&manifests), errors.iter().map(ToString::to_string).collect())
    }

    fn hidden(text: &str) -> Hidden {
        Hidden::new(text.as_bytes().to_vec())
    }

    #[test] // rule 90
    fn secrets_and_config_maps_are_read_as_kubectl_reads_them() {
        let (values, errors) = parsed(&format!("{SECRET}---\n{CONFIG_MAP}"));
        assert_eq!(errors, Vec::<String>::new());
        let secret = [("user", "admin"), ("both", "new"), ("password", "hunter2")];
        let secret = secret.map(|(key, value)| (key.to_owned(), hidden(value)));
        let data =
            [("host", "cam.example"), ("key", "\0\u{1}\u{2}\u{3}")].map(|(key, value)| (key.to_owned(), hidden(value)));
        let expected = [
            ((ReferenceKind::Secret, Key::new("edge", "cam")), Stored::Data(secret.into())),
            ((ReferenceKind::ConfigMap, Key::new("default", "cam")), Stored::Data(data.into())),
        ];
        assert_eq!(values, expected.into());
    }

    #[test]
    fn errors_name_file_line_and_field() {
        let large = format!("  password: {}", "x".repeat(MAX_VALUE + 1));
        for (text, from, to, expected) in [
            (SECRET, "  user: YWRtaW4=", "  user: admin!", ":10: data.user: is not base64 in a string"),
            (SECRET, "  password: hunter2", "  password: 12", ":13: stringData.password: is not a string"),
            (SECRET, "stringData:", "stringdata:", ":12: stringdata: unknown field"),
            (SECRET, "  user:", "  us er:", ":10: data.us er: is no key"),
            (SECRET, "  name: cam", "  nam: cam", ":4: metadata.nam: unknown field"),
            (SECRET, "  name: cam", "  name: Cam", ":4: metadata.name: 'Cam' is not a Kubernetes name"),
            (SECRET, "namespace: edge", "namespace: ../..", ":5: metadata.namespace: '../..' is not a namespace"),
            (SECRET, "  password: hunter2", &large, ":1: holds more than 1 MiB"),
            (SECRET, "apiVersion: v1", "apiVersion: akri.sh/v0", ":1: apiVersion: 'akri.sh/v0' is not v1"),
            (CONFIG_MAP, "    AAEC", "    AAE", ":7: binaryData.key: is not base64"),
            (CONFIG_MAP, "  key:", "  host:", ":7: binaryData.host: is in data, too"),
            (CONFIG_MAP, "cam.example", "5", ":5: data.host: invalid type: integer `5`, expected a string"),
        ] {
            let (_, errors) = parsed(&text.replacen(from, to, 1));
            let first = errors.first().unwrap_or_else(|| panic!("no error: {to}"));
            assert!(first.starts_with(&format!("x.yaml{expected}")), "{expected}: {errors:?}");
        }
    }

    /// Wherever the value is put, and whatever is wrong around it.
    #[test] // rule 90
    fn no_error_and_no_debug_output_shows_what_a_secret_holds() {
        let good = SECRET.replace("hunter2", "s3cr3t-value");
        assert!(!format!("{:?}", parse(Path::new("x.yaml"), &good)).contains("s3cr3t"));
        let hidden = "s3cr3t-value";
        for (from, to) in [
            ("password: hunter2", "password: {a: s3cr3t-value}"),
            ("password: hunter2", "password: [s3cr3t-value]"),
            ("password: hunter2", "password: !!int s3cr3t-value"),
            ("password: hunter2", "password: *s3cr3t-value"),
            ("password: hunter2", "password: \"s3cr3t-value"),
            ("password: hunter2", "password: %s3cr3t-value: x: y"),
            ("user: YWRtaW4=", "user: s3cr3t-value"),
            ("data:\n  user: YWRtaW4=\n  both: b2xk", "data: s3cr3t-value"),
            ("type: Opaque", "type: [s3cr3t-value]"),
            ("immutable: true", "immutable: s3cr3t-value"),
            ("  name: cam", "  name: [s3cr3t-value]"),
        ] {
            let (_, errors) = parsed(&SECRET.replacen(from, to, 1));
            assert!(!errors.is_empty() && !format!("{errors:?}").contains(hidden), "{to}: {errors:?}");
        }
    }

    #[test] // rule 90
    fn text_of_a_secret_is_overwritten() {
        let mut value = serde_json::json!({"a": ["hunter2", {"b": "hunter2"}], "c": 1, "d": null});
        wipe(&mut value);
        assert_eq!(value, serde_json::json!({"a": ["", {"b": ""}], "c": 1, "d": null}));
    }
}
