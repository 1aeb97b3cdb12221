//! The cache of instances, so that one that is silent is asked for itself before it counts as gone.

use std::collections::{BTreeMap, BTreeSet};

use crate::message;
use crate::name::Name;

/// Instances with what earlier rounds have shown of them.
pub type Known = BTreeMap<Name, Facts>;

/// The facts about an instance that decide what is asked for again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Set if it has shown a `TXT` record.
    pub has_text: bool,
    /// Set if its host has addresses of one kind only, and has not answered questions for the other.
    pub has_one_kind: bool,
}

/// Encodes the names that were browsed and as many instances as fit. The root ends the former, and follows an instance once
/// if it has no `TXT` record, and twice if its host has addresses of one kind.
pub fn encode(browsed: &BTreeSet<Name>, known: &Known, max_bytes: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    browsed.iter().chain([&Name::default()]).for_each(|name| name.encode(&mut bytes));
    for (name, facts) in known {
        let mut entry = Vec::new();
        name.encode(&mut entry);
        let marks = usize::from(!facts.has_text) + 2 * usize::from(facts.has_one_kind);
        (0..marks).for_each(|_| Name::default().encode(&mut entry));
        if bytes.len() + entry.len() <= max_bytes {
            bytes.extend(entry);
        }
    }
    bytes
}

/// Parses the output of [`encode`]; anything invalid ends it. Instances that other names led to are none of these.
pub fn decode(bytes: &[u8], browsed: &BTreeSet<Name>) -> Known {
    let mut names = names(bytes);
    let before: BTreeSet<Name> = names.by_ref().take_while(|name| *name != Name::default()).collect();
    let mut known = Known::new();
    if before != *browsed {
        return known;
    }
    let mut names = names.peekable();
    while let Some(name) = names.next() {
        let marks = std::iter::from_fn(|| names.next_if(|name| *name == Name::default())).count();
        known.insert(name, Facts { has_text: marks % 2 == 0, has_one_kind: marks & 2 != 0 });
    }
    known
}

fn names(bytes: &[u8]) -> impl Iterator<Item = Name> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let (name, end) = message::name_at(bytes, at)?;
        at = end;
        Some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::name;

    fn browsed(of: &str) -> BTreeSet<Name> {
        [name(of)].into()
    }

    #[test]
    fn names_survive_as_far_as_they_fit() {
        let ipp = browsed("_ipp._tcp.local");
        let all = [("a", true, false), ("b", false, false), ("c", true, true), ("d", false, true), ("e", true, false)];
        let facts = |(of, has_text, has_one_kind)| (name(&format!("{of}.local")), Facts { has_text, has_one_kind });
        let known: Known = all.map(facts).into();
        let bytes = encode(&ipp, &known, 1_000);
        assert_eq!(decode(&bytes, &ipp), known);
        let shorter: Known = all.into_iter().take(4).map(facts).collect();
        assert_eq!(decode(&encode(&ipp, &known, bytes.len() - 1), &ipp), shorter);
        assert_eq!(decode(&bytes[..bytes.len() - 1], &ipp), shorter);
        assert_eq!(decode(&[], &ipp), Known::new());
        assert_eq!(decode(&[0xff; 40], &ipp), Known::new());
    }

    #[test]
    fn instances_of_other_names_are_forgotten() {
        let facts = Facts { has_text: true, has_one_kind: false };
        let known: Known = [(name("Hall._ipp._tcp.local"), facts)].into();
        let bytes = encode(&browsed("_ipp._tcp.local"), &known, 1_000);
        assert_eq!(decode(&bytes, &browsed("_color._sub._ipp._tcp.local")), Known::new());
        assert_eq!(decode(&bytes, &browsed("_IPP._tcp.local")), known);
    }
}
