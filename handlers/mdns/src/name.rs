//! Domain names.

use std::cmp::Ordering;
use std::fmt;

/// Limit on a name, in bytes as sent (RFC 1035, section 2.3.4).
pub const MAX_NAME: usize = 255;
/// Limit on a label, in bytes.
pub const MAX_LABEL: usize = 63;

/// A domain name. Names that differ in the case of ASCII letters are equal, as in DNS.
#[derive(Debug, Clone, Default)]
pub struct Name(Vec<Vec<u8>>);

impl Name {
    /// Creates a name. None if a label is empty or the name is too long.
    pub fn new(labels: impl IntoIterator<Item = impl Into<Vec<u8>>>) -> Option<Self> {
        let mut name = Self::default();
        labels.into_iter().all(|label| name.push(&label.into())).then_some(name)
    }

    /// Adds a label at the end. Returns false, and adds nothing, if it is empty or the name would be too long.
    pub fn push(&mut self, label: &[u8]) -> bool {
        let fits = (1..=MAX_LABEL).contains(&label.len()) && self.encoded_len() + 1 + label.len() <= MAX_NAME;
        if fits {
            self.0.push(label.to_vec());
        }
        fits
    }

    /// Returns the first label and the rest, as text and name; none of the root.
    pub fn split_first(&self) -> Option<(String, Self)> {
        let (first, rest) = self.0.split_first()?;
        Some((printable(first), Self(rest.to_vec())))
    }

    /// Appends the name as it is sent, without compression.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        for label in &self.0 {
            bytes.push(u8::try_from(label.len()).unwrap_or_default()); // at most 63
            bytes.extend(label);
        }
        bytes.push(0);
    }

    /// Returns the length of the name as it is sent.
    pub fn encoded_len(&self) -> usize {
        self.0.iter().map(|label| label.len() + 1).sum::<usize>() + 1
    }

    /// Returns the name in lower case, as it identifies a device.
    #[must_use]
    pub fn to_lowercase(&self) -> Self {
        Self(self.0.iter().map(|label| label.to_ascii_lowercase()).collect())
    }

    /// Returns the bytes that are compared.
    fn folded(&self) -> impl Iterator<Item = Option<u8>> {
        let end = std::iter::once(None);
        self.0.iter().flat_map(move |label| label.iter().map(|byte| Some(byte.to_ascii_lowercase())).chain(end.clone()))
    }
}

/// Returns a label as text: bytes that are not UTF-8 and control characters as `\DDD`.
fn printable(label: &[u8]) -> String {
    let mut text = String::new();
    for chunk in label.utf8_chunks() {
        for character in chunk.valid().chars() {
            match u8::try_from(character) {
                Ok(byte) if byte.is_ascii_control() => text.push_str(&format!("\\{byte:03}")),
                _ => text.push(character),
            }
        }
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\{byte:03}")));
    }
    text
}

/// As in zone files: labels separated by dots, dots and backslashes in them escaped.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, label) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(".")?;
            }
            let escaped: Vec<u8> = label.iter().flat_map(|byte| escaped(*byte)).collect();
            f.write_str(&printable(&escaped))?;
        }
        Ok(())
    }
}

fn escaped(byte: u8) -> impl Iterator<Item = u8> {
    matches!(byte, b'.' | b'\\').then_some(b'\\').into_iter().chain([byte])
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Name {}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Name {
    fn cmp(&self, other: &Self) -> Ordering {
        self.folded().cmp(other.folded())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(labels: &[&str]) -> Name {
        Name::new(labels.iter().copied()).unwrap()
    }

    #[test]
    fn names_compare_without_case() {
        assert_eq!(name(&["Printer", "_IPP"]), name(&["printer", "_ipp"]));
        assert_ne!(name(&["a", "b"]), name(&["ab"]));
        assert_ne!(name(&["a"]), name(&["a", "b"]));
        assert_ne!(name(&["Ä"]), name(&["ä"]), "only ASCII letters");
        assert_eq!(name(&["A.B", "c"]).to_lowercase().to_string(), "a\\.b.c");
    }

    #[test]
    fn labels_and_names_are_bounded() {
        assert_eq!(Name::new([""]), None);
        assert_eq!(Name::new(["x".repeat(64)]), None);
        assert!(Name::new(vec!["x".repeat(63); 3]).is_some());
        assert_eq!(Name::new(vec!["x".repeat(63); 4]), None);
        let mut bytes = Vec::new();
        name(&["ab", "c"]).encode(&mut bytes);
        assert_eq!((bytes.as_slice(), name(&["ab", "c"]).encoded_len()), (&b"\x02ab\x01c\0"[..], 6));
    }

    #[test]
    fn any_label_is_shown_as_text() {
        for (label, shown, text) in [
            (&b"Dr. K\xc3\xbcche"[..], "Dr\\. Küche", "Dr. Küche"),
            (b"a\\b", "a\\\\b", "a\\b"),
            (b"a\0\n\xff", "a\\000\\010\\255", "a\\000\\010\\255"),
        ] {
            let name = Name::new([label]).unwrap();
            assert_eq!((name.to_string(), name.split_first().unwrap().0), (shown.to_owned(), text.to_owned()));
        }
    }
}
