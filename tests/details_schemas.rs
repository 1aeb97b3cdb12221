//! The JSON Schema of each built-in handler's details: it takes what the examples and the documentation have, and refuses what the
//! handler refuses.

use std::fs;
use std::path::{Path, PathBuf};

use akri_api::manifest::{self, Object};
use serde_json::{Value, json};
use walkdir::WalkDir;

use crate::support::node::{Node, built_components};

const HANDLERS: [(&str, &str); 5] = [
    ("udev", "udev.wasm"),
    ("debugEcho", "debug_echo.wasm"),
    ("onvif", "onvif.wasm"),
    ("opcua", "opcua.wasm"),
    ("mdns", "mdns.wasm"),
];

/// Returns the first place of a value that breaks a schema. It panics at keywords that it does not know.
fn wrong(root: &Value, schema: &Value, value: &Value, place: &str) -> Option<String> {
    let at = |why: &str| Some(format!("{place}: {why}"));
    let fields = schema.as_object().unwrap();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let type_of = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    for (keyword, rule) in fields {
        let text = value.as_str().unwrap_or_default();
        let number = |rule: &Value| rule.as_u64().unwrap();
        let broken = match keyword.as_str() {
            "$schema" | "$defs" | "title" | "description" | "default" => None,
            "$ref" => wrong(root, root.pointer(rule.as_str()?.strip_prefix('#')?).unwrap(), value, place),
            "type" if *rule != type_of && !list(rule).contains(&type_of.into()) => at("has another type"),
            "enum" if !list(rule).contains(value) => at("is none of the values"),
            "required" => {
                list(rule).iter().find(|name| value.get(name.as_str().unwrap()).is_none()).and(at("lacks a field"))
            }
            "additionalProperties" => {
                let known = fields["properties"].as_object().unwrap();
                let mut names = value.as_object().into_iter().flatten().map(|(name, _)| name);
                names.find(|name| !known.contains_key(*name)).and_then(|name| at(&format!("has the unknown '{name}'")))
            }
            "properties" => rule
                .as_object()
                .unwrap()
                .iter()
                .find_map(|(name, schema)| wrong(root, schema, value.get(name)?, &format!("{place}/{name}"))),
            "items" => list(value).iter().find_map(|item| wrong(root, rule, item, &format!("{place}/items"))),
            "minItems" if (list(value).len() as u64) < number(rule) => at("has too few items"),
            "maxItems" if (list(value).len() as u64) > number(rule) => at("has too many items"),
            "minLength" if (text.len() as u64) < number(rule) => at("is too short"),
            "minimum" if value.as_u64().unwrap_or_default() < number(rule) => at("is too small"),
            "maximum" if value.as_u64().unwrap_or_default() > number(rule) => at("is too large"),
            "pattern" if !matches(rule.as_str().unwrap(), text) => at("does not match"),
            "type" | "enum" | "minItems" | "maxItems" | "minLength" | "minimum" | "maximum" | "pattern" => None,
            other => panic!("{place}: the keyword '{other}' is not checked"),
        };
        if broken.is_some() {
            return broken;
        }
    }
    None
}

/// Returns whether a text has only letters of the class in `^[CLASS]+$`, or at most 64 with `{1,64}`.
fn matches(pattern: &str, text: &str) -> bool {
    let (class, most) = match pattern.strip_suffix("]{1,64}$") {
        Some(class) => (class, 64),
        None => (pattern.strip_suffix("]+$").unwrap(), usize::MAX),
    };
    let class = class.strip_prefix("^[").unwrap().replace("A-Z", "").replace("a-z", "").replace("0-9", "");
    let ranges = |c: char| pattern.contains("A-Za-z0-9") && c.is_ascii_alphanumeric();
    (1..=most).contains(&text.len()) && text.chars().all(|c| ranges(c) || class.contains(c))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the details of a handler in all manifests of the examples and the documentation, with their files.
fn examples(handler: &str) -> Vec<(String, Value)> {
    let files = ["examples", "docs"].map(|directory| WalkDir::new(root().join(directory)).into_iter().flatten());
    let mut found = Vec::new();
    for entry in files.into_iter().flatten() {
        let (path, Ok(text)) = (entry.path(), fs::read_to_string(entry.path())) else { continue };
        let blocks: Vec<&str> = match path.extension().and_then(|extension| extension.to_str()) {
            Some("yaml") => vec![&text],
            Some("md") => text.split("```yaml\n").skip(1).filter_map(|block| block.split("```").next()).collect(),
            _ => continue,
        };
        for block in blocks {
            for manifest in manifest::parse(path, block).0 {
                let Object::Configuration(configuration) = manifest.object else { continue };
                let asked = configuration.spec.discovery_handler;
                if asked.name == handler {
                    let details = serde_saphyr::from_str(&asked.discovery_details).unwrap();
                    found.push((path.display().to_string(), details));
                }
            }
        }
    }
    found
}

/// Returns whether the component takes these details.
fn is_valid(node: &Node, (handler, file): (&str, &str), details: &Value) -> bool {
    let spec = json!({"discoveryHandler": {"name": handler, "discoveryDetails": details.to_string()}, "capacity": 1});
    let object = json!({"apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": "a"}, "spec": spec});
    node.write("configuration.yaml", &object.to_string());
    let (component, configuration) = (built_components().join(file), node.path("configuration.yaml"));
    node.akri(&["handler", "validate", component.to_str().unwrap(), configuration.to_str().unwrap()]).status.success()
}

#[test]
fn schemas_take_all_examples_and_refuse_what_handlers_refuse() {
    let node = Node::new();
    for (handler, file) in HANDLERS {
        let component = built_components().join(file);
        let output = node.akri(&["handler", "inspect", component.to_str().unwrap(), "--schema"]);
        let schema: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{handler}: {output:?}"));
        let examples = examples(handler);
        assert!(!examples.is_empty(), "{handler}");
        for (path, details) in &examples {
            assert_eq!(wrong(&schema, &schema, details, ""), None, "{path}: {details}");
        }
        let valid = &examples[0].1;
        assert!(is_valid(&node, (handler, file), valid), "{handler}: {valid}");
        let mut unknown = valid.clone();
        unknown["noSuchField"] = json!(1);
        assert!(wrong(&schema, &schema, &unknown, "").unwrap().contains("noSuchField"), "{handler}");
        let (mut refused, mut null) = (vec![unknown, json!([]), json!("text")], json!({}));
        for (name, field) in schema["properties"].as_object().unwrap() {
            // A value that no field takes, and one that breaks each bound of this one.
            null[name] = json!(-1);
            let list = |length: u64| json!(vec!["_a._tcp"; usize::try_from(length).unwrap()]);
            let bounds = [
                field.get("maxItems").and_then(Value::as_u64).map(|most| list(most + 1)),
                field.get("minItems").and_then(Value::as_u64).map(|_| list(0)),
                field.get("maximum").and_then(Value::as_u64).map(|most| json!(most + 1)),
                field.get("enum").or(field.get("pattern")).map(|_| json!("none of these")),
                Some(json!(-1)),
            ];
            for bound in bounds.into_iter().flatten() {
                let mut details = valid.clone();
                details[name] = bound;
                refused.push(details);
            }
        }
        for details in refused {
            assert!(wrong(&schema, &schema, &details, "").is_some(), "{handler}: the schema takes {details}");
            assert!(!is_valid(&node, (handler, file), &details), "{handler}: the handler takes {details}");
        }
    }
}

/// Another language has no macro for it.
#[test]
fn schema_is_added_once_and_one_that_lies_is_refused() {
    let node = Node::new();
    let path = |name: &str| node.path(name).display().to_string();
    fs::copy(built_components().join("udev.wasm"), path("udev.wasm")).unwrap();
    let module = [b"\0asm\x0d\0\x01\0".as_slice()].concat();
    fs::write(path("empty.wasm"), module).unwrap();
    node.write("schema.json", "{\"type\": \"object\"}");
    let add = |from: &str, schema: &str| {
        node.akri(&["handler", "componentize", &path(from), &path("out.wasm"), "--details-schema", &path(schema)])
    };
    let added = add("empty.wasm", "schema.json");
    assert!(added.status.success(), "{added:?}");
    let bytes = fs::read(path("out.wasm")).unwrap();
    assert!(bytes.ends_with(b"akri:details-schema{\"type\": \"object\"}"), "{bytes:?}");
    let twice = String::from_utf8(add("udev.wasm", "schema.json").stderr).unwrap();
    assert!(twice.contains("has a schema of its details already"), "{twice}");
    node.write("lie.json", "{\"$ref\": \"#\"}");
    let lie = String::from_utf8(add("empty.wasm", "lie.json").stderr).unwrap();
    assert!(lie.contains("lie.json': the schema of the details is recursive at '#'"), "{lie}");

    // What a component brings along is not believed.
    let mut bytes = fs::read(path("udev.wasm")).unwrap();
    bytes.extend([&[0, 21, 19], b"akri:details-schema".as_slice(), b"5"].concat());
    fs::write(path("udev.wasm"), bytes).unwrap();
    let shown = node.akri(&["handler", "inspect", &path("udev.wasm")]);
    let warning = String::from_utf8(shown.stderr).unwrap();
    assert!(shown.status.success() && warning.contains("two schemas of its details; nobody uses it"), "{warning}");
    let printed = node.akri(&["handler", "inspect", &path("udev.wasm"), "--schema"]);
    assert!(!printed.status.success() && printed.stdout.is_empty());
}
