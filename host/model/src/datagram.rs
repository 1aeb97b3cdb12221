//! Filters for the datagrams that start a round.

use std::fmt;

use memchr::memmem;
use serde::{Deserialize, Serialize};

use crate::text::{hex, unhex};

/// Bytes that a filter looks at.
const LONGEST: usize = 64;

/// A filter for datagrams.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub enum DatagramFilter {
    /// Nothing in particular.
    #[default]
    Any,
    /// These bytes, anywhere.
    Contains(String),
    /// At an offset, bytes that are these after a mask: the flag of an answer, say.
    At {
        /// From the start of the payload.
        offset: u16,
        /// The bytes, masked.
        value: Vec<u8>,
        /// Of the same length.
        mask: Vec<u8>,
        /// A text that it also contains, anywhere: the name of a service, say.
        text: String,
    },
}

impl DatagramFilter {
    /// Reads `@OFFSET HEX` or `@OFFSET HEX/MASK`, and a text after a further space; any other text has to be in the datagram as it is, and "" is in each.
    pub fn parse(text: &str) -> Option<Self> {
        match text.strip_prefix('@') {
            Some(at) => parse_at(at),
            None if text.is_empty() => Some(Self::Any),
            None => Some(Self::Contains(text.to_owned())),
        }
    }

    /// Returns the bytes that the filter compares.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Any => 0,
            Self::Contains(text) => text.len(),
            Self::At { value, mask, text, .. } => value.len().max(mask.len()) + text.len(),
        }
    }

    /// Returns whether a datagram counts.
    pub fn matches(&self, payload: &[u8]) -> bool {
        match self {
            Self::Any => true,
            Self::Contains(text) => contains(payload, text),
            Self::At { offset, value, mask, text } => {
                let start = usize::from(*offset);
                let bytes = payload.get(start..start.saturating_add(value.len()));
                let masked = |((byte, mask), value): ((&u8, &u8), &u8)| byte & mask == *value;
                bytes.is_some_and(|bytes| bytes.iter().zip(mask).zip(value).all(masked)) && contains(payload, text)
            }
        }
    }
}

impl fmt::Display for DatagramFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::Contains(text) => write!(f, "'{text}'"),
            Self::At { offset, value, mask, text } => {
                write!(f, "@{offset} {}/{}", hex(value), hex(mask))?;
                if text.is_empty() { Ok(()) } else { write!(f, " '{text}'") }
            }
        }
    }
}

fn contains(payload: &[u8], text: &str) -> bool {
    memmem::find(payload, text.as_bytes()).is_some()
}

fn parse_at(text: &str) -> Option<DatagramFilter> {
    let (offset, bytes) = text.split_once(' ')?;
    let (bytes, text) = bytes.split_once(' ').unwrap_or((bytes, ""));
    let (value, mask) = bytes.split_once('/').unwrap_or((bytes, ""));
    let value = unhex(value)?;
    let mask = if mask.is_empty() { vec![0xff; value.len()] } else { unhex(mask)? };
    if value.is_empty() || value.len() > LONGEST || mask.len() != value.len() {
        return None;
    }
    let value = value.iter().zip(&mask).map(|(byte, mask)| byte & mask).collect();
    Some(DatagramFilter::At { offset: offset.parse().ok()?, value, mask, text: text.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_parse_and_display() {
        for (text, shown) in [
            ("", "any"),
            ("discovery/Hello", "'discovery/Hello'"),
            ("@2 84", "@2 84/ff"),
            ("@2 ff00/8000", "@2 8000/8000"),
            ("@2 80/80 _ipp", "@2 80/80 '_ipp'"),
            ("@2 84 a b", "@2 84/ff 'a b'"),
        ] {
            assert_eq!(DatagramFilter::parse(text).unwrap().to_string(), shown, "{text}");
        }
        for text in ["@", "@2", "@x 84", "@70000 84", "@2 8", "@2 84/8", "@2 84/8080", "@2 zz", "@2 "] {
            assert_eq!(DatagramFilter::parse(text), None, "{text}");
        }
    }

    #[test] // rule 92
    fn filter_matches_masked_bytes_at_an_offset() {
        let answers = DatagramFilter::parse("@2 80/80").unwrap();
        for (payload, counts) in [
            (&[0, 0, 0x84, 0][..], true),
            (&[0, 0, 0, 0], false),
            (&[0, 0], false),
            (&[], false),
            (&[0, 0, 0x80], true),
        ] {
            assert_eq!(answers.matches(payload), counts, "{payload:?}");
        }
        let service = DatagramFilter::parse("@0 80/80 _ipp").unwrap();
        for (payload, counts) in [(&b"\x84 _ipp"[..], true), (b"\x04 _ipp", false), (b"\x84 _raop", false)] {
            assert_eq!(service.matches(payload), counts, "{payload:?}");
        }
        let hello = DatagramFilter::Contains("Hello".to_owned());
        assert!(hello.matches(b"a Hello b") && !hello.matches(b"Bye") && DatagramFilter::Any.matches(b""));
    }
}
