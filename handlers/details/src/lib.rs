//! The details of a Configuration as a handler's own type, or what is wrong in them and where. The host has read YAML and JSON
//! by then: what a handler gets is JSON.

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::{Path, Segment};

/// Something wrong in the details.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// JSON pointer (RFC 6901) into the details, "" for the whole.
    pub path: String,
    /// A CamelCase word for programs: `InvalidDetails`, or one of the handler's own.
    pub reason: &'static str,
    /// What is wrong and what would be right.
    pub message: String,
}

impl Problem {
    /// One that needs no word of its own.
    pub fn invalid(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), reason: "InvalidDetails", message: message.into() }
    }
}

/// Reads the details as the host gives them: as JSON, or none if they are neither YAML nor JSON. `mapping` says what they must
/// be if they are no mapping.
///
/// # Errors
/// The first bad field.
pub fn read<T: DeserializeOwned>(json: Option<&str>, mapping: &str) -> Result<T, Problem> {
    let fields = match json.map(serde_json::from_str) {
        Some(Ok(Value::Object(fields))) => fields,
        Some(Ok(_)) => return Err(Problem::invalid("", mapping)),
        Some(Err(_)) | None => return Err(Problem::invalid("", "the details are neither YAML nor JSON")),
    };
    serde_path_to_error::deserialize(fields)
        .map_err(|error| Problem::invalid(pointer(error.path()), error.inner().to_string()))
}

/// The path of a serde error as a JSON pointer.
fn pointer(path: &Path) -> String {
    path.iter().fold(String::new(), |pointer, segment| match segment {
        Segment::Seq { index } => format!("{pointer}/{index}"),
        Segment::Map { key } => format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1")),
        Segment::Enum { .. } | Segment::Unknown => pointer,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    type Numbers = BTreeMap<String, Vec<u8>>;

    fn refused(json: Option<&str>) -> (String, String) {
        let problem = read::<Numbers>(json, "numbers must be a mapping").unwrap_err();
        assert_eq!(problem.reason, "InvalidDetails");
        (problem.path, problem.message)
    }

    #[test]
    fn a_mapping_is_read() {
        let numbers: Numbers = read(Some(r#"{"a": [1, 2]}"#), "").unwrap();
        assert_eq!(numbers, [("a".to_owned(), vec![1, 2])].into());
    }

    #[test]
    fn what_is_no_mapping_says_what_it_must_be() {
        for json in ["null", "5", "[]", "\"a\""] {
            assert_eq!(refused(Some(json)), (String::new(), "numbers must be a mapping".to_owned()), "{json}");
        }
        for json in [None, Some(""), Some("{")] {
            assert_eq!(refused(json), (String::new(), "the details are neither YAML nor JSON".to_owned()), "{json:?}");
        }
    }

    #[test]
    fn a_bad_field_is_named_by_a_json_pointer() {
        let (path, message) = refused(Some(r#"{"a/b~c": [1, "x"]}"#));
        assert_eq!(path, "/a~1b~0c/1");
        assert_eq!(message, "invalid type: string \"x\", expected u8");
    }
}
