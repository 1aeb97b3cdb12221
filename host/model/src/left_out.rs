//! Devices that a round has seen and a filter of the details left out (rule 138).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::text::clean;

/// The reason of a handler's note that its filter left something out: the note's origin is what, its message the filter.
pub const FILTERED: &str = "Filtered";

/// The beginning of each sentence about what was left out.
pub const LEFT_OUT: &str = "left out by ";

/// Filters that are told apart, and names that are kept of each. Others are counted.
const FILTERS: usize = 8;
const NAMES: usize = 8;

/// Bytes of a filter or a name.
const TEXT: usize = 128;

/// The names of what was left out, by filter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut(BTreeMap<String, Names>);

/// The first names in their order, which is the same in each round, and the number of all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Names {
    count: u64,
    first: BTreeSet<String>,
}

impl LeftOut {
    /// Adds what a filter left out.
    pub fn add(&mut self, filter: &str, name: &str) {
        self.add_names(filter, 1, std::iter::once(name));
    }

    /// Adds what another source, or process, says of itself: the bounds hold for the sum.
    pub fn extend(&mut self, other: &Self) {
        for (filter, names) in other.0.iter().take(FILTERS) {
            self.add_names(filter, names.count, names.first.iter().take(NAMES).map(String::as_str));
        }
    }

    fn add_names<'n>(&mut self, filter: &str, count: u64, names: impl Iterator<Item = &'n str>) {
        let filter = clean(filter, TEXT);
        if self.0.len() >= FILTERS && !self.0.contains_key(&filter) {
            return;
        }
        let known = self.0.entry(filter).or_default();
        known.count = known.count.saturating_add(count);
        known.first.extend(names.map(|name| clean(name, TEXT)));
        while known.first.len() > NAMES {
            known.first.pop_last();
        }
    }

    /// Returns whether nothing was left out.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (filter, Names { count, first })) in self.0.iter().enumerate() {
            let names: Vec<String> = first.iter().map(|name| format!("'{name}'")).collect();
            let more = count.saturating_sub(names.len() as u64);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let separator = if index > 0 { "; " } else { "" };
            write!(f, "{separator}{LEFT_OUT}{filter}: {}{more}", names.join(", "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test] // rule 138
    fn left_out_devices_are_counted_by_filter() {
        let mut one = LeftOut::default();
        assert!(one.is_empty() && one.to_string().is_empty());
        one.add("`scopes`", "Hall");
        let mut both = LeftOut::default();
        (0..12).for_each(|number| both.add("`applicationNames`", &format!("Pump {number:02}")));
        both.extend(&one);
        let shown = both.to_string();
        assert!(shown.starts_with("left out by `applicationNames`: 'Pump 00', "), "{shown}");
        assert!(shown.ends_with("'Pump 07' and 4 more; left out by `scopes`: 'Hall'"), "{shown}");
    }

    #[test] // threat 33
    fn left_out_devices_are_bounded() {
        let mut all = LeftOut::default();
        for number in 0..1000 {
            all.add(&format!("{number}{}", "x".repeat(999)), &"y\u{1b}".repeat(999));
        }
        let forged = LeftOut((0..1000).map(|number| (number.to_string(), Names::default())).collect());
        all.extend(&forged);
        assert!(all.to_string().len() < FILTERS * (NAMES + 1) * (TEXT + 32) && !all.to_string().contains('\u{1b}'));
    }
}
