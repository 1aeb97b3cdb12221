//! The cache of instances, so that one that is silent is asked for itself before it counts as gone.

use std::collections::BTreeSet;

use crate::message;
use crate::name::Name;

/// Encodes as many names as fit.
pub fn encode(names: &BTreeSet<Name>, max_bytes: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for name in names {
        if bytes.len() + name.encoded_len() <= max_bytes {
            name.encode(&mut bytes);
        }
    }
    bytes
}

/// Parses the output of [`encode`]; anything invalid ends it.
pub fn decode(bytes: &[u8]) -> BTreeSet<Name> {
    let mut at = 0;
    let next = || {
        let (name, end) = message::name_at(bytes, at)?;
        at = end;
        Some(name)
    };
    std::iter::from_fn(next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::name;

    #[test]
    fn names_survive_as_far_as_they_fit() {
        let names: BTreeSet<Name> = ["a.local", "Hall._ipp._tcp.local"].map(name).into();
        let bytes = encode(&names, 1_000);
        assert_eq!(decode(&bytes), names);
        assert_eq!(encode(&names, bytes.len() - 1).len(), name("a.local").encoded_len());
        assert_eq!(decode(&bytes[..bytes.len() - 1]), [name("a.local")].into());
        assert_eq!(decode(&[]), BTreeSet::new());
        assert_eq!(decode(&[0xff; 40]), BTreeSet::new());
    }
}
