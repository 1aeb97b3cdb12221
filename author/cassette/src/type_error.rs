//! Errors of fields in the words of those who write cassettes, and not in those of the types that read them.

use akri_api::validate::FieldError;
use akri_model::text::clean;
use akri_model::text::dotted;

/// Bytes of a message, and of a value in it: it may repeat what is in the file.
const MESSAGE: usize = 512;
const VALUE: usize = 128;

/// Describes the error of a field: where it is, what is there, and what has to be.
pub(crate) fn type_error(FieldError { path, message }: &FieldError) -> String {
    let field = clean(&dotted(path), VALUE);
    let text = match parts(message) {
        _ if message.starts_with("unknown variant") => {
            message.replacen("unknown variant", "there is no", 1).replacen(", expected one of ", "; there are ", 1)
        }
        _ if message.starts_with("unknown field") => {
            let known = message.split_once("expected ").map(|(_, known)| format!(", expected {known}"));
            format!("unknown field `{field}`{}", known.unwrap_or("; see docs/reference/cassettes.md".to_owned()))
        }
        Some((found, expected)) => {
            let name = if field.is_empty() { "it".to_owned() } else { format!("`{field}`") };
            format!("{name} is {} and has to be {}", clean(&this(found), VALUE), wanted(expected, &field))
        }
        None if field.is_empty() => message.clone(),
        None => format!("`{field}`: {message}"),
    };
    clean(&text, MESSAGE)
}

/// Splits `invalid type: FOUND, expected EXPECTED`. What was found may be any text.
fn parts(message: &str) -> Option<(&str, &str)> {
    let rest = message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "))?;
    rest.rsplit_once(", expected ")
}

/// Describes a value that is there.
fn this(found: &str) -> String {
    match found {
        "map" => "a mapping".to_owned(),
        "sequence" => "a list".to_owned(),
        "null" | "unit value" => "empty".to_owned(),
        other => other.replacen("string ", "the text ", 1).replacen("integer ", "", 1).replacen("boolean ", "", 1),
    }
}

/// Describes the value that is expected of a field, with its unit.
fn wanted(expected: &str, field: &str) -> String {
    match (expected, field.rsplit('.').next().unwrap_or_default()) {
        ("u64", "at") => "a number of microseconds".to_owned(),
        ("u64", "limit" | "time") => "a number of milliseconds".to_owned(),
        ("u16", _) => format!("a number from 0 to {}", u16::MAX),
        ("u32", _) => format!("a number from 0 to {}", u32::MAX),
        ("u64" | "usize" | "i64", _) => "a whole number".to_owned(),
        ("a string" | "a borrowed string", _) => "a text".to_owned(),
        ("a boolean", _) => "true or false".to_owned(),
        ("a sequence", _) => "a list".to_owned(),
        ("a map", _) => "a mapping".to_owned(),
        (expected, _) if expected.starts_with("struct ") => "a mapping with fields".to_owned(),
        (expected, _) => expected.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use akri_api::manifest::typed;
    use serde_json::json;

    use super::*;
    use crate::round::Arguments;

    #[test]
    fn errors_name_field_value_and_unit() {
        for (value, expected) in [
            (json!({"time": "noon"}), "`time` is the text \"noon\" and has to be a number of milliseconds"),
            (json!({"limit": null}), "`limit` is empty and has to be a number of milliseconds"),
            (json!({"secrets": {}}), "`secrets` is a mapping and has to be a list"),
            (json!({"secrets": ["a", true]}), "`secrets[1]` is `true` and has to be a text"),
            (json!({"properties": {"a.b": []}}), "`properties.a.b`: bytes are a string"),
            (json!("now"), "it is the text \"now\" and has to be a mapping with fields"),
        ] {
            let errors = typed::<Arguments>(&value).unwrap_err();
            let error = type_error(&errors[0]);
            assert!(error.starts_with(expected), "{expected}: {error}");
        }
    }

    #[test]
    fn long_values_are_cut() {
        let value = json!({"limit": "x, expected y".repeat(999)});
        let text = type_error(&typed::<Arguments>(&value).unwrap_err()[0]);
        assert!(text.len() < 256 && text.ends_with(" and has to be a number of milliseconds"), "{text}");
    }
}
