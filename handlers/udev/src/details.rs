//! The `discoveryDetails` of udev.

use akri_handler::{Problem, read};
use serde::Deserialize;

use crate::rule::Rule;

/// Maximum number of bad rules reported at once.
const MAX_PROBLEMS: usize = 16;

/// Maximum number of properties that a device gets from udev and sysfs.
const MAX_PROPERTIES: usize = 16;

/// Maximum length of the name of one.
const MAX_NAME: usize = 64;

/// The details of one Configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Details {
    /// The rules; a device that matches one of them is selected.
    pub rules: Vec<Rule>,
    /// Set if devices below one another are grouped into one.
    pub group_recursive: bool,
    /// The permissions of containers on the device nodes.
    pub permissions: Permissions,
    /// Names of udev properties or sysfs attributes that become properties of the device.
    pub properties: Vec<String>,
}

/// The fields of the details as written.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Fields {
    udev_rules: Vec<String>,
    #[serde(default)]
    group_recursive: bool,
    #[serde(default)]
    permissions: Permissions,
    #[serde(default)]
    properties: Vec<String>,
}

impl Details {
    /// Parses the details as the host passes them: as JSON, or `None` if they are neither YAML nor JSON.
    ///
    /// # Errors
    /// At least one problem: the first bad field, or up to 16 bad rules.
    pub fn parse(json: Option<&str>) -> Result<Self, Vec<Problem>> {
        let fields: Fields =
            read(json, "the details must be a mapping with the field 'udevRules'").map_err(|one| vec![one])?;
        let rules = rules(&fields.udev_rules)?;
        check_properties(&fields.properties)?;
        let Fields { group_recursive, permissions, properties, .. } = fields;
        Ok(Self { rules, group_recursive, permissions, properties })
    }
}

fn check_properties(names: &[String]) -> Result<(), Vec<Problem>> {
    if names.len() > MAX_PROPERTIES {
        let message = format!("{} properties, more than {MAX_PROPERTIES}", names.len());
        return Err(vec![Problem::invalid("/properties", message)]);
    }
    let is_name = |name: &str| {
        (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    };
    let wrong = names.iter().enumerate().filter(|(_, name)| !is_name(name));
    let problem = |(index, name): (usize, &String)| {
        let message = format!(
            "'{}' is no udev property and no attribute, such as ID_SERIAL_SHORT or serial",
            name.escape_debug()
        );
        Problem::invalid(format!("/properties/{index}"), message)
    };
    let problems: Vec<Problem> = wrong.map(problem).collect();
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// Returns whether a text has comments only.
fn is_comment(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty()).peekable();
    lines.peek().is_some() && lines.all(|line| line.starts_with('#'))
}

fn rules(texts: &[String]) -> Result<Vec<Rule>, Vec<Problem>> {
    let (mut rules, mut problems) = (Vec::new(), Vec::new());
    for (index, text) in texts.iter().enumerate().filter(|(_, text)| !is_comment(text)) {
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

/// Device cgroup permissions, normalized to the usual order.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Permissions(String);

impl Permissions {
    /// Returns a subset of `r`, `w`, `m`, in this order.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Permissions {
    fn default() -> Self {
        Self("rw".into())
    }
}

impl TryFrom<String> for Permissions {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let ordered: String = "rwm".chars().filter(|letter| text.contains(*letter)).collect();
        // Equal lengths: no other letters and no duplicates.
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
    fn only_rules_are_required() {
        let details = Details::parse(Some(r#"{"udevRules": []}"#)).unwrap();
        assert_eq!(
            details,
            Details {
                rules: vec![],
                group_recursive: false,
                permissions: Permissions("rw".into()),
                properties: vec![]
            }
        );
        let json = r#"{"udevRules": ["KERNEL==\"a\"", "TAG!=\"b\""], "groupRecursive": true, "permissions": "wr"}"#;
        let details = Details::parse(Some(json)).unwrap();
        assert_eq!(details.rules.iter().map(Rule::to_string).collect::<Vec<_>>(), ["KERNEL==\"a\"", "TAG!=\"b\""]);
        assert!(details.group_recursive);
        assert_eq!(details.permissions.as_str(), "rw");
    }

    #[test]
    fn comments_are_no_rules() {
        let json = r##"{"udevRules": ["# cameras\n#", "KERNEL==\"a\",\n# and\n TAG==\"b\",", "", "# x"]}"##;
        let problems = Details::parse(Some(json)).unwrap_err();
        assert_eq!(problems.iter().map(|problem| problem.path.as_str()).collect::<Vec<_>>(), ["/udevRules/2"]);
        let details = Details::parse(Some(&json.replace("\"\", ", ""))).unwrap();
        assert_eq!(details.rules.iter().map(Rule::to_string).collect::<Vec<_>>(), ["KERNEL==\"a\", TAG==\"b\""]);
    }

    #[test]
    fn details_that_are_not_a_mapping_are_refused() {
        for json in ["null", "[]", "3", r#"[[]]"#] {
            assert_eq!(problem(json), ("".into(), "the details must be a mapping with the field 'udevRules'".into()));
        }
        for json in [None, Some(""), Some("{")] {
            assert_eq!(Details::parse(json), Err(vec![Problem::invalid("", "the details are neither YAML nor JSON")]));
        }
    }

    #[test]
    fn bad_field_is_named() {
        for (json, path, message) in [
            ("{}", "", "missing field `udevRules`"),
            (
                r#"{"udevRules": [], "udevRule": []}"#,
                "/udevRule",
                "unknown field `udevRule`, expected one of `udevRules`, `groupRecursive`, `permissions`, `properties`",
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
    fn properties_are_named_by_udev_or_sysfs() {
        let parse = |names: &[&str]| {
            Details::parse(Some(&serde_json::json!({"udevRules": [], "properties": names}).to_string()))
        };
        assert_eq!(parse(&["ID_SERIAL_SHORT", "serial"]).unwrap().properties, ["ID_SERIAL_SHORT", "serial"]);
        let paths = |names: &[&str]| -> Vec<String> {
            parse(names).unwrap_err().into_iter().map(|problem| problem.path).collect()
        };
        assert_eq!(
            paths(&["a", "", "ENV{x}", "../x", &"x".repeat(65)]),
            ["1", "2", "3", "4"].map(|n| format!("/properties/{n}"))
        );
        assert_eq!(paths(&["x"; 17]), ["/properties"]);
    }

    #[test]
    fn permissions_are_any_subset_of_three_letters() {
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
