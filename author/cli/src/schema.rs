//! The JSON Schema of a handler's details, in a section of its component. It is for people and their editors: hosts ignore it, and
//! `validate` of the handler decides.

use std::collections::BTreeSet;

use serde_json::Value;
use wasm_encoder::{ComponentSection as _, CustomSection};
use wasmparser::{Parser, Payload};

/// The name of the section.
const SECTION: &str = "akri:details-schema";
/// Bytes of a schema.
const MAX_SCHEMA: usize = 64 << 10;
/// References in a schema.
const MAX_REFERENCES: usize = 256;

/// Returns the schema of a component's details, as its author wrote it.
///
/// # Errors
/// If it is none, or there are several.
pub(crate) fn read(component: &[u8]) -> Result<Option<String>, String> {
    let mut found = None;
    for payload in Parser::new(0).parse_all(component) {
        let Payload::CustomSection(section) = payload.map_err(|error| error.to_string())? else { continue };
        if section.name() == SECTION && found.replace(section.data()).is_some() {
            return Err("the component has two schemas of its details".to_owned());
        }
    }
    found.map(check).transpose()
}

/// Adds a schema to a component.
///
/// # Errors
/// If it is none, or the component has one.
pub(crate) fn add(component: &mut Vec<u8>, schema: &[u8]) -> Result<(), String> {
    check(schema)?;
    if read(component)?.is_some() {
        return Err("the component has a schema of its details already".to_owned());
    }
    CustomSection { name: SECTION.into(), data: schema.into() }.append_to_component(component);
    Ok(())
}

/// Checks that bytes are a schema that programs can use without care.
fn check(schema: &[u8]) -> Result<String, String> {
    if schema.len() > MAX_SCHEMA {
        return Err(format!("the schema of the details has {} bytes (at most {MAX_SCHEMA})", schema.len()));
    }
    let value: Value =
        serde_json::from_slice(schema).map_err(|error| format!("the schema of the details is no JSON: {error}"))?;
    if !value.is_object() {
        return Err("the schema of the details is no JSON object".to_owned());
    }
    if references(&value).len() > MAX_REFERENCES {
        return Err(format!("the schema of the details has more than {MAX_REFERENCES} '$ref'"));
    }
    follow(&value, "#", &mut BTreeSet::new(), &mut BTreeSet::new())?;
    Ok(String::from_utf8_lossy(schema).into_owned())
}

/// Returns all references in a part of a schema.
fn references(part: &Value) -> Vec<&str> {
    match part {
        Value::Object(fields) => {
            let own = fields.get("$ref").and_then(Value::as_str);
            own.into_iter().chain(fields.values().flat_map(references)).collect()
        }
        Value::Array(items) => items.iter().flat_map(references).collect(),
        _ => Vec::new(),
    }
}

/// Follows the references of a part: each leads to a part of the same schema, and none back to itself.
fn follow<'s>(
    schema: &'s Value,
    place: &'s str,
    under_way: &mut BTreeSet<&'s str>,
    done: &mut BTreeSet<&'s str>,
) -> Result<(), String> {
    if done.contains(place) {
        return Ok(());
    }
    if !under_way.insert(place) {
        return Err(format!("the schema of the details is recursive at '{}'", place.escape_debug()));
    }
    let part = place.strip_prefix('#').and_then(|pointer| schema.pointer(pointer));
    let part = part.ok_or_else(|| format!("the schema of the details has no '{}'", place.escape_debug()))?;
    references(part).into_iter().try_for_each(|reference| follow(schema, reference, under_way, done))?;
    under_way.remove(place);
    done.insert(place);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &[u8] = b"\0asm\x0d\0\x01\0";

    fn with(schema: &[u8]) -> Result<Option<String>, String> {
        let mut component = EMPTY.to_vec();
        CustomSection { name: SECTION.into(), data: schema.into() }.append_to_component(&mut component);
        read(&component)
    }

    #[test]
    fn schema_that_was_added_is_read() {
        let schema = format!(
            r##"{{"$defs": {{"a": {{}}}}, "b": [{{"$ref": "#/$defs/a"}}, {{"$ref": "#/$defs/a"}}], "c": "{}"}}"##,
            "x".repeat(300)
        );
        let mut component = EMPTY.to_vec();
        assert_eq!(read(&component), Ok(None));
        add(&mut component, schema.as_bytes()).unwrap();
        assert_eq!(read(&component), Ok(Some(schema.clone())));
        let error = add(&mut component, schema.as_bytes()).unwrap_err();
        assert_eq!(error, "the component has a schema of its details already");
    }

    #[test]
    fn schema_that_lies_is_refused() {
        let large = format!("{{\"a\": \"{}\"}}", "x".repeat(MAX_SCHEMA));
        let many = format!("{{\"a\": [{}{{}}]}}", "{\"$ref\": \"#/a/0\"}, ".repeat(MAX_REFERENCES + 1));
        for (schema, message) in [
            (large.as_str(), "bytes (at most 65536)"),
            (&many, "more than 256 '$ref'"),
            ("", "is no JSON"),
            ("{\"a\": }", "is no JSON"),
            ("[]", "is no JSON object"),
            (r##"{"items": {"$ref": "#"}}"##, "is recursive at '#'"),
            (
                r##"{"$defs": {"a": {"x": {"$ref": "#/$defs/b"}}, "b": {"$ref": "#/$defs/a"}}}"##,
                "is recursive at '#/$defs/",
            ),
            (r##"{"$ref": "https://example.com/schema"}"##, "has no 'https://example.com/schema'"),
            (r##"{"$ref": "#/$defs/none"}"##, "has no '#/$defs/none'"),
        ] {
            let error = with(schema.as_bytes()).unwrap_err();
            assert!(error.contains(message), "{schema:.80}: {error}");
        }
        assert!(with(b"\xff").unwrap_err().contains("is no JSON"));
    }
}
