//! Parsing of `discoveryDetails` into a handler's own type, with located errors. The host has converted YAML to JSON.

use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::{Path, Segment};

/// An error in the details.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// JSON pointer (RFC 6901) into the details, "" for the whole.
    pub path: String,
    /// A CamelCase word: `InvalidDetails`, or one of the handler's own.
    pub reason: &'static str,
    /// A sentence: what is wrong and what is expected.
    pub message: String,
}

impl Problem {
    /// Creates a problem of the reason `InvalidDetails`.
    pub fn invalid(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), reason: "InvalidDetails", message: message.into() }
    }
}

/// Limit on a window in seconds; a round has 60 s in total.
const MAX_WINDOW: u64 = 30;

/// A field of details: the time to wait for answers from a group, 1 to 30 s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "i64")]
pub struct Window<const DEFAULT: u64>(pub Duration);

impl<const DEFAULT: u64> Default for Window<DEFAULT> {
    fn default() -> Self {
        Self(Duration::from_secs(DEFAULT))
    }
}

impl<const DEFAULT: u64> TryFrom<i64> for Window<DEFAULT> {
    type Error = String;

    fn try_from(seconds: i64) -> Result<Self, Self::Error> {
        match u64::try_from(seconds) {
            Ok(seconds @ 1..=MAX_WINDOW) => Ok(Self(Duration::from_secs(seconds))),
            _ => Err(format!("answers are waited for 1 to {MAX_WINDOW} seconds, not {seconds}")),
        }
    }
}

/// Parses the details as the host passes them: as JSON, or `None` if they are neither YAML nor JSON. `mapping`
/// describes the expected mapping, for the error if they are something else.
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

/// Converts the path of a serde error to a JSON pointer.
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
    fn mapping_is_parsed() {
        let numbers: Numbers = read(Some(r#"{"a": [1, 2]}"#), "").unwrap();
        assert_eq!(numbers, [("a".to_owned(), vec![1, 2])].into());
    }

    #[test]
    fn other_values_are_refused_with_the_expected_type() {
        for json in ["null", "5", "[]", "\"a\""] {
            assert_eq!(refused(Some(json)), (String::new(), "numbers must be a mapping".to_owned()), "{json}");
        }
        for json in [None, Some(""), Some("{")] {
            assert_eq!(refused(json), (String::new(), "the details are neither YAML nor JSON".to_owned()), "{json:?}");
        }
    }

    #[test]
    fn bad_field_is_named_by_json_pointer() {
        let (path, message) = refused(Some(r#"{"a/b~c": [1, "x"]}"#));
        assert_eq!(path, "/a~1b~0c/1");
        assert_eq!(message, "invalid type: string \"x\", expected u8");
    }
}
