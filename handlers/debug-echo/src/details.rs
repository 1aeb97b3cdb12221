//! The `discoveryDetails` of debugEcho.

use std::collections::BTreeSet;

use akri_handler::{Problem, read};
use serde::Deserialize;

/// The details of one Configuration.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Details {
    /// The descriptions, one device each.
    descriptions: Vec<String>,
}

impl Details {
    /// Parses the details as the host passes them: as JSON, or `None` if they are neither YAML nor JSON.
    ///
    /// # Errors
    /// All problems, at least one.
    pub fn parse(json: Option<&str>) -> Result<Self, Vec<Problem>> {
        let details: Self =
            read(json, "the details must be a mapping with the field 'descriptions'").map_err(|one| vec![one])?;
        let empty: Vec<Problem> = details.empty_descriptions().collect();
        if empty.is_empty() { Ok(details) } else { Err(empty) }
    }

    /// Returns the descriptions in the order given, without duplicates.
    pub fn devices(self) -> Vec<String> {
        let mut seen = BTreeSet::new();
        self.descriptions.into_iter().filter(|description| seen.insert(description.clone())).collect()
    }

    /// Returns a problem for each empty description, since a description is a device's id.
    fn empty_descriptions(&self) -> impl Iterator<Item = Problem> + '_ {
        let empty = self.descriptions.iter().enumerate().filter(|(_, description)| description.is_empty());
        empty.map(|(index, _)| Problem::invalid(format!("/descriptions/{index}"), "a description must not be empty"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(json: &str) -> (String, String) {
        let problem = Details::parse(Some(json)).unwrap_err().remove(0);
        (problem.path, problem.message)
    }

    #[test]
    fn descriptions_become_devices_in_order() {
        let details = Details::parse(Some(r#"{"descriptions": ["foo1", "foo0", "foo1", "foo 2"]}"#)).unwrap();
        assert_eq!(details.devices(), ["foo1", "foo0", "foo 2"]);
        assert_eq!(Details::parse(Some(r#"{"descriptions": []}"#)).unwrap().devices(), [""; 0]);
    }

    #[test]
    fn details_that_are_not_a_mapping_are_refused() {
        for json in ["null", "[]", "3", r#"["foo"]"#, r#"[["foo"]]"#] {
            assert_eq!(
                problem(json),
                ("".into(), "the details must be a mapping with the field 'descriptions'".into())
            );
        }
        for json in [None, Some(""), Some("{")] {
            assert_eq!(Details::parse(json), Err(vec![Problem::invalid("", "the details are neither YAML nor JSON")]));
        }
    }

    #[test]
    fn bad_field_is_named() {
        for (json, path, message) in [
            ("{}", "", "missing field `descriptions`"),
            (r#"{"descriptions": "foo"}"#, "/descriptions", "invalid type: string \"foo\", expected a sequence"),
            (r#"{"descriptions": ["a", 5]}"#, "/descriptions/1", "invalid type: integer `5`, expected a string"),
            (r#"{"descriptions": ["a", ""]}"#, "/descriptions/1", "a description must not be empty"),
            (r#"{"descriptions": [], "a~/b": 1}"#, "/a~0~1b", "unknown field `a~/b`, expected `descriptions`"),
        ] {
            assert_eq!(problem(json), (path.into(), message.into()), "{json}");
        }
    }

    #[test]
    fn every_empty_description_is_named() {
        let problems = Details::parse(Some(r#"{"descriptions": ["", "a", ""]}"#)).unwrap_err();
        let paths: Vec<&str> = problems.iter().map(|problem| problem.path.as_str()).collect();
        assert_eq!(paths, ["/descriptions/0", "/descriptions/2"]);
    }
}
