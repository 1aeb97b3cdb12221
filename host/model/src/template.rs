//! Templates of names and paths: texts in which `{{NAME}}` stands for a property of a device. There is nothing else to it.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::environment;

/// Maximum number of bytes of a template.
pub const MAX_TEMPLATE: usize = 256;

/// Maximum number of properties that an error lists.
const LISTED: usize = 16;

/// A template.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Template(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Part {
    Text(String),
    Property(String),
}

impl FromStr for Template {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.len() > MAX_TEMPLATE {
            return Err(format!("has {} bytes; a template has 1 to {MAX_TEMPLATE}", text.len()));
        }
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some((before, after)) = rest.split_once("{{") {
            let (name, after) = after.split_once("}}").ok_or("'{{' has no '}}'")?;
            if !environment::is_name(name) {
                let name = name.escape_debug();
                return Err(format!("'{{{{{name}}}}}' is not the name of a property, such as '{{{{UDEV_DEVNODE}}}}'"));
            }
            parts.extend((!before.is_empty()).then(|| Part::Text(before.to_owned())));
            parts.push(Part::Property(name.to_owned()));
            rest = after;
        }
        parts.extend((!rest.is_empty()).then(|| Part::Text(rest.to_owned())));
        Ok(Self(parts))
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|part| match part {
            Part::Text(text) => f.write_str(text),
            Part::Property(name) => write!(f, "{{{{{name}}}}}"),
        })
    }
}

impl Template {
    /// Returns whether it names a property.
    pub fn names(&self, property: &str) -> bool {
        self.0.iter().any(|part| matches!(part, Part::Property(name) if name == property))
    }

    /// Returns the text for a device; what `kept` is named stays as it is written.
    ///
    /// # Errors
    /// If the device lacks a property.
    pub fn expand(&self, properties: &BTreeMap<String, String>, kept: &str) -> Result<String, String> {
        self.expand_with(|name| {
            let value = properties.get(name).cloned();
            value.or_else(|| (name == kept).then(|| format!("{{{{{name}}}}}"))).ok_or_else(|| missing(name, properties))
        })
    }

    /// Returns the text with the same value for all properties.
    pub fn expand_all(&self, value: &str) -> String {
        self.expand_with(|_| Ok(value.to_owned())).unwrap_or_default()
    }

    fn expand_with(&self, value: impl Fn(&str) -> Result<String, String>) -> Result<String, String> {
        let text = self.0.iter().map(|part| match part {
            Part::Text(text) => Ok(text.clone()),
            Part::Property(name) => value(name),
        });
        text.collect()
    }
}

fn missing(name: &str, properties: &BTreeMap<String, String>) -> String {
    let mut present: Vec<&str> = properties.keys().map(String::as_str).take(LISTED).collect();
    match properties.len() {
        0 => present.push("none"),
        count if count > LISTED => present.push("others"),
        _ => {}
    }
    format!("the device has no property '{name}'; it has {}", present.join(", "))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn properties(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test] // rule 124, rule 125
    fn names_stand_for_properties_and_all_else_for_itself() {
        let template: Template = "cam-{{SERIAL}}{{A.b}}-}}{x}{{index}}".parse().unwrap();
        let text = template.expand(&properties(&[("SERIAL", "{{B}}"), ("A.b", ""), ("B", "c")]), "index");
        assert_eq!(text.unwrap(), "cam-{{B}}-}}{x}{{index}}", "values are no templates");
        assert!(template.names("index") && !template.names("cam"));
    }

    #[test] // rule 124, rule 125
    fn missing_property_is_named_with_those_that_exist() {
        let template: Template = "{{SERIAL}}".parse().unwrap();
        let error = |properties| template.expand(&properties, "").unwrap_err();
        assert_eq!(error(properties(&[("A", ""), ("B", "")])), "the device has no property 'SERIAL'; it has A, B");
        assert_eq!(error(BTreeMap::new()), "the device has no property 'SERIAL'; it has none");
        let many = (0..99).map(|number| (format!("P{number}"), String::new())).collect();
        assert!(error(many).ends_with(", others"));
    }

    #[test]
    fn text_that_is_no_template_is_refused() {
        for (text, error) in [
            (String::new(), "has 0 bytes; a template has 1 to 256"),
            ("x".repeat(257), "has 257 bytes; a template has 1 to 256"),
            ("a{{B".into(), "'{{' has no '}}'"),
            ("{{}}".into(), "'{{}}' is not the name of a property, such as '{{UDEV_DEVNODE}}'"),
            ("{{ A }}".into(), "'{{ A }}' is not the name of a property, such as '{{UDEV_DEVNODE}}'"),
            ("{{A|lower}}".into(), "'{{A|lower}}' is not the name of a property, such as '{{UDEV_DEVNODE}}'"),
        ] {
            assert_eq!(text.parse::<Template>().unwrap_err().to_string(), error, "{text}");
        }
    }

    proptest! {
        #[test]
        fn template_is_shown_as_it_was_read(text in "([a-z/}-]|\\{\\{[A-Z]{1,3}\\}\\}){1,20}") {
            prop_assert_eq!(text.parse::<Template>().unwrap().to_string(), text);
        }
    }
}
