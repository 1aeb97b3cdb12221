//! `discoveryDetails`: what a Configuration may say.

use serde::Deserialize;
use serde_json::Value;
use serde_path_to_error::{Path, Segment};

use crate::rule::Rule;

/// How many bad rules are told at once.
const MAX_PROBLEMS: usize = 16;

/// Something wrong in the details.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// JSON pointer (RFC 6901) into the details, "" for the whole.
    pub path: String,
    /// `InvalidDetails` or `InvalidRule`.
    pub reason: &'static str,
    /// What is wrong and what would be right; for a rule with the rule and carets below the place.
    pub message: String,
}

/// The details of one Configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Details {
    /// A device is found if one of these holds.
    pub rules: Vec<Rule>,
    /// Whether devices below one another become one device.
    pub group_recursive: bool,
    /// What containers may do with the device nodes.
    pub permissions: Permissions,
}

/// The details as they are written.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Fields {
    udev_rules: Vec<String>,
    #[serde(default)]
    group_recursive: bool,
    #[serde(default)]
    permissions: Permissions,
}

impl Details {
    /// Reads the details as the host gives them: as JSON, or none if they are neither YAML nor JSON.
    ///
    /// # Errors
    /// At least one problem: the first bad field, or up to 16 bad rules.
    pub fn parse(json: Option<&str>) -> Result<Self, Vec<Problem>> {
        let fields = match json.map(serde_json::from_str) {
            Some(Ok(Value::Object(fields))) => fields,
            Some(Ok(_)) => return Err(vec![invalid("", "the details must be a mapping with the field 'udevRules'")]),
            Some(Err(_)) | None => return Err(vec![invalid("", "the details are neither YAML nor JSON")]),
        };
        let fields: Fields = serde_path_to_error::deserialize(fields)
            .map_err(|error| vec![invalid(pointer(error.path()), error.inner().to_string())])?;
        let rules = rules(&fields.udev_rules)?;
        Ok(Self { rules, group_recursive: fields.group_recursive, permissions: fields.permissions })
    }
}

fn rules(texts: &[String]) -> Result<Vec<Rule>, Vec<Problem>> {
    let (mut rules, mut problems) = (Vec::new(), Vec::new());
    for (index, text) in texts.iter().enumerate() {
        match text.parse::<Rule>() {
            Ok(rule) => rules.push(rule),
            Err(error) => problems.push(Problem {
                path: format!("/udevRules/{index}"),
                reason: "InvalidRule",
                message: error.explain(text),
            }),
        }
        if problems.len() == MAX_PROBLEMS {
            break;
        }
    }
    if problems.is_empty() { Ok(rules) } else { Err(problems) }
}

fn invalid(path: impl Into<String>, message: impl Into<String>) -> Problem {
    Problem { path: path.into(), reason: "InvalidDetails", message: message.into() }
}

/// The path of a serde error as a JSON pointer.
fn pointer(path: &Path) -> String {
    path.iter().fold(String::new(), |pointer, segment| match segment {
        Segment::Seq { index } => format!("{pointer}/{index}"),
        Segment::Map { key } => format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1")),
        Segment::Enum { .. } | Segment::Unknown => pointer,
    })
}

/// Device cgroup permissions. Details may name them in any order; container runtimes get them in the usual one.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Permissions(String);

impl Permissions {
    /// Some of `r`, `w`, `m`, in this order.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Permissions {
    fn default() -> Self {
        Self("rwm".into())
    }
}

impl TryFrom<String> for Permissions {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let ordered: String = "rwm".chars().filter(|letter| text.contains(*letter)).collect();
        // Of the same length: nothing else and nothing twice.
        if text.is_empty() || ordered.len() != text.len() {
            return Err("permissions must be some of 'r', 'w' and 'm', each at most once");
        }
        Ok(Self(ordered))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(json: &str) -> (String, String) {
        let problem = Details::parse(Some(json)).unwrap_err().remove(0);
        assert_eq!(problem.reason, "InvalidDetails");
        (problem.path, problem.message)
    }

    #[test]
    fn only_the_rules_are_required() {
        let details = Details::parse(Some(r#"{"udevRules": []}"#)).unwrap();
        assert_eq!(details, Details { rules: vec![], group_recursive: false, permissions: Permissions("rwm".into()) });
        let json = r#"{"udevRules": ["KERNEL==\"a\"", "TAG!=\"b\""], "groupRecursive": true, "permissions": "wr"}"#;
        let details = Details::parse(Some(json)).unwrap();
        assert_eq!(details.rules.iter().map(Rule::to_string).collect::<Vec<_>>(), ["KERNEL==\"a\"", "TAG!=\"b\""]);
        assert!(details.group_recursive);
        assert_eq!(details.permissions.as_str(), "rw");
    }

    #[test]
    fn details_that_are_no_mapping_are_named_as_a_whole() {
        for json in ["null", "[]", "3", r#"[[]]"#] {
            assert_eq!(problem(json), ("".into(), "the details must be a mapping with the field 'udevRules'".into()));
        }
        for json in [None, Some(""), Some("{")] {
            assert_eq!(Details::parse(json), Err(vec![invalid("", "the details are neither YAML nor JSON")]));
        }
    }

    #[test]
    fn a_bad_field_is_named() {
        for (json, path, message) in [
            ("{}", "", "missing field `udevRules`"),
            (
                r#"{"udevRules": [], "udevRule": []}"#,
                "/udevRule",
                "unknown field `udevRule`, expected one of `udevRules`, `groupRecursive`, `permissions`",
            ),
            (r#"{"udevRules": "KERNEL"}"#, "/udevRules", "invalid type: string \"KERNEL\", expected a sequence"),
            (r#"{"udevRules": null}"#, "/udevRules", "invalid type: null, expected a sequence"),
            (r#"{"udevRules": ["KERNEL==\"a\"", {}]}"#, "/udevRules/1", "invalid type: map, expected a string"),
            (
                r#"{"udevRules": [], "groupRecursive": "yes"}"#,
                "/groupRecursive",
                "invalid type: string \"yes\", expected a boolean",
            ),
        ] {
            assert_eq!(problem(json), (path.into(), message.into()), "{json}");
        }
    }

    #[test]
    fn permissions_are_some_of_three_letters_in_any_order() {
        for (text, ordered) in [("r", "r"), ("mw", "wm"), ("wr", "rw"), ("mwr", "rwm"), ("rwm", "rwm")] {
            assert_eq!(Permissions::try_from(text.to_owned()).unwrap().as_str(), ordered);
        }
        for text in ["", "x", "rr", "rwx", "rwmr", "rwmm", "é", "R"] {
            let json = serde_json::json!({"udevRules": [], "permissions": text}).to_string();
            let message = "permissions must be some of 'r', 'w' and 'm', each at most once";
            assert_eq!(problem(&json), ("/permissions".into(), message.into()), "{text}");
        }
    }

    #[test]
    fn every_bad_rule_is_named_up_to_a_bound() {
        let json = r#"{"udevRules": ["KERNAL==\"a\"", "KERNEL==\"a\"", "KERNEL=\"a\""]}"#;
        let problems = Details::parse(Some(json)).unwrap_err();
        let paths: Vec<&str> = problems.iter().map(|problem| problem.path.as_str()).collect();
        assert_eq!(paths, ["/udevRules/0", "/udevRules/2"]);
        assert_eq!(problems[0].reason, "InvalidRule");
        let message = "unknown field 'KERNAL', did you mean 'KERNEL'?\n  KERNAL==\"a\"\n  ^^^^^^";
        assert_eq!(problems[0].message, message);
        let many = serde_json::json!({ "udevRules": vec!["?"; 1000] }).to_string();
        assert_eq!(Details::parse(Some(&many)).unwrap_err().len(), MAX_PROBLEMS);
    }
}
