//! Patterns that select instances.

use serde::Deserialize;

use crate::text::Entry;

/// A pattern for the name of an instance, without the case of ASCII letters; `*` stands for any text.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct InstancePattern(String);

impl InstancePattern {
    /// Returns whether a name matches.
    pub fn matches(&self, instance: &str) -> bool {
        matches(self.0.as_bytes(), instance.to_ascii_lowercase().as_bytes())
    }
}

impl TryFrom<String> for InstancePattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        match text.is_empty() {
            true => {
                Err("the name of an instance is not empty; write one such as 'Hall printer', or 'Hall*'".to_owned())
            }
            false => Ok(Self(text.to_ascii_lowercase())),
        }
    }
}

/// A pattern for an entry of the `TXT` record: `KEY`, or `KEY=VALUE`, where `*` in the value stands for any text.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct EntryPattern {
    key: String,
    value: Option<String>,
}

impl EntryPattern {
    /// Returns whether an entry matches.
    pub fn matches(&self, entry: &Entry) -> bool {
        let is_value = |value: &String| matches(value.as_bytes(), &entry.value);
        self.key.eq_ignore_ascii_case(&entry.key) && self.value.as_ref().is_none_or(is_value)
    }
}

impl TryFrom<String> for EntryPattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let (key, value) = text.split_once('=').map_or((text.as_str(), None), |(key, value)| (key, Some(value)));
        match key.is_empty() {
            true => Err(format!("'{text}' has no key; write KEY, or KEY=VALUE")),
            false => Ok(Self { key: key.to_owned(), value: value.map(str::to_owned) }),
        }
    }
}

/// Compares with a pattern in which `*` stands for any bytes.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let mut parts = pattern.split(|byte| *byte == b'*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return false };
    let mut parts: Vec<&[u8]> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts.into_iter().filter(|part| !part.is_empty()) {
        let Some(at) = rest.windows(part.len()).position(|window| window == part) else { return false };
        rest = rest.get(at + part.len()..).unwrap_or_default();
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn star_stands_for_any_text() {
        for (pattern, text, expected) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("a", "", false),
            ("*", "", true),
            ("a*", "abc", true),
            ("a*", "ba", false),
            ("*c", "abc", true),
            ("a*c", "abc", true),
            ("ab*bc", "abc", false),
            ("a*b*c", "a-b-b-c", true),
            ("a**c", "ac", true),
            ("*b*", "abc", true),
            ("*b*", "ac", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn patterns_match_names_and_entries() {
        let instance = |text: &str| InstancePattern::try_from(text.to_owned());
        assert!(instance("hall *").unwrap().matches("Hall printer") && !instance("hall").unwrap().matches("Hall 2"));
        assert!(instance("").is_err());
        let entry = |text: &str| EntryPattern::try_from(text.to_owned());
        let laser = Entry { key: "ty".to_owned(), value: b"Laser 5\xff".to_vec() };
        for (pattern, expected) in
            [("ty", true), ("TY=Laser*", true), ("ty=laser*", false), ("ty=", false), ("t", false), ("ty=*", true)]
        {
            assert_eq!(entry(pattern).unwrap().matches(&laser), expected, "{pattern}");
        }
        assert_eq!(entry("=x").unwrap_err(), "'=x' has no key; write KEY, or KEY=VALUE");
    }
}
