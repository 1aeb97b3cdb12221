//! The cache of instances, so that one that is silent is asked for itself before it counts as gone.

use std::collections::{BTreeMap, BTreeSet};

use crate::message;
use crate::name::Name;

/// Instances, each with whether it has shown a `TXT` record.
pub type Known = BTreeMap<Name, bool>;

/// Encodes the names that were browsed and as many instances as fit. The root ends the former, and follows an instance
/// that has shown no `TXT` record.
pub fn encode(browsed: &BTreeSet<Name>, known: &Known, max_bytes: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    browsed.iter().chain([&Name::default()]).for_each(|name| name.encode(&mut bytes));
    for (name, has_text) in known {
        let mut entry = Vec::new();
        name.encode(&mut entry);
        if !has_text {
            Name::default().encode(&mut entry);
        }
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
    let mut last = None;
    for name in names {
        if name != Name::default() {
            known.insert(name.clone(), true);
            last = Some(name);
        } else if let Some(name) = last.take() {
            known.insert(name, false);
        }
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
        let known: Known = [("a.local", true), ("b.local", false), ("c.local", true)].map(|(n, t)| (name(n), t)).into();
        let bytes = encode(&ipp, &known, 1_000);
        assert_eq!(decode(&bytes, &ipp), known);
        let shorter: Known = [("a.local", true), ("b.local", false)].map(|(n, t)| (name(n), t)).into();
        assert_eq!(decode(&encode(&ipp, &known, bytes.len() - 1), &ipp), shorter);
        assert_eq!(decode(&bytes[..bytes.len() - 1], &ipp), shorter);
        assert_eq!(decode(&[], &ipp), Known::new());
        assert_eq!(decode(&[0xff; 40], &ipp), Known::new());
    }

    #[test]
    fn instances_of_other_names_are_forgotten() {
        let known: Known = [(name("Hall._ipp._tcp.local"), true)].into();
        let bytes = encode(&browsed("_ipp._tcp.local"), &known, 1_000);
        assert_eq!(decode(&bytes, &browsed("_color._sub._ipp._tcp.local")), Known::new());
        assert_eq!(decode(&bytes, &browsed("_IPP._tcp.local")), known);
    }
}
