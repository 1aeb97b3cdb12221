//! Filters in details: a list of values or patterns that includes or excludes devices.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// The reason of a note about what a filter left out: its origin is the device, as people know it, its message the filter. The host
/// counts these, and tells of them where somebody looks for the device.
pub const FILTERED: &str = "Filtered";

/// A list of values or patterns that includes or excludes devices: `{action: Exclude, items: [...]}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter<T> {
    /// The effect of a match.
    pub action: FilterAction,
    /// The values or patterns; one match suffices. Empty only where nothing is excluded.
    pub items: Vec<T>,
}

/// The effect of a match.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub enum FilterAction {
    /// Only devices that match are selected.
    #[default]
    Include,
    /// Devices that match are not selected.
    Exclude,
}

/// The fields of a filter as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, bound = "T: Deserialize<'de>")]
struct Fields<T> {
    #[serde(default)]
    action: FilterAction,
    #[serde(default = "Vec::new")]
    items: Vec<T>,
}

/// Accepts a mapping only: a derived implementation also takes a list of its fields.
struct FilterVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for FilterVisitor<T> {
    type Value = Filter<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a mapping such as {items: [...]}")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Filter<T>, A::Error> {
        let Fields { action, items } = Fields::deserialize(MapAccessDeserializer::new(map))?;
        if action == FilterAction::Include && items.is_empty() {
            return Err(A::Error::custom("without items it selects nothing; write {items: [...]}"));
        }
        Ok(Filter { action, items })
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Filter<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(FilterVisitor(PhantomData))
    }
}

impl<T> Filter<T> {
    /// Returns whether a device is selected that `matches` the items for which the function is true.
    pub fn selects(&self, matches: impl Fn(&T) -> bool) -> bool {
        self.items.iter().any(matches) == (self.action == FilterAction::Include)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_includes_or_excludes() {
        use FilterAction::{Exclude, Include};
        for (action, items, expected) in [
            (Include, vec![1, 2], true),
            (Include, vec![3], false),
            (Include, vec![], false),
            (Exclude, vec![1, 2], false),
            (Exclude, vec![], true),
        ] {
            assert_eq!(Filter { action, items }.selects(|item| *item == 2), expected, "{action:?}");
        }
    }

    #[test]
    fn filter_is_a_mapping_with_items() {
        let read = |json: &str| serde_json::from_str::<Filter<u8>>(json).map_err(|error| error.to_string());
        assert_eq!(read(r#"{"items": [1]}"#), Ok(Filter { action: FilterAction::Include, items: vec![1] }));
        assert_eq!(read(r#"{"action": "Exclude"}"#), Ok(Filter { action: FilterAction::Exclude, items: vec![] }));
        for (json, expected) in [
            (r#"{"items": []}"#, "without items it selects nothing"),
            (r#"["Include", [1]]"#, "invalid type: sequence, expected a mapping such as {items: [...]}"),
            (r#"{"action": "include"}"#, "unknown variant `include`, expected `Include` or `Exclude`"),
            (r#"{"item": [1]}"#, "unknown field `item`, expected `action` or `items`"),
        ] {
            assert!(read(json).unwrap_err().contains(expected), "{json}");
        }
    }
}
