//! The `TXT` record of an instance (RFC 6763, section 6).

use std::fmt::Write as _;

/// Limit on the keys that are read.
pub const MAX_KEYS: usize = 48;

/// A key with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key as sent: printable ASCII without `=`.
    pub key: String,
    /// The value; empty if there is none.
    pub value: Vec<u8>,
}

impl Entry {
    /// Returns the value if it is text: UTF-8 without control characters.
    pub fn text(&self) -> Option<&str> {
        str::from_utf8(&self.value).ok().filter(|text| !text.contains(char::is_control))
    }

    /// Returns the name and the value of the property: `<KEY>`, or `<KEY>_HEX` for bytes that are not text.
    pub fn property(&self) -> (String, String) {
        let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
        let name: String = self.key.chars().map(letter).collect();
        match self.text() {
            Some(text) => (name, text.to_owned()),
            None => (format!("{name}_HEX"), hex(&self.value)),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // a String takes everything
        text
    })
}

/// Parses the strings of a record. Strings without a key are skipped, and of several with one key the first counts.
pub fn entries(mut strings: &[u8]) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    while let Some((length, rest)) = strings.split_first() {
        let Some((string, rest)) = rest.split_at_checked(usize::from(*length)) else { break };
        strings = rest;
        let is_new = |new: &Entry| !entries.iter().any(|entry| entry.key.eq_ignore_ascii_case(&new.key));
        if let Some(new) = entry(string).filter(is_new)
            && entries.len() < MAX_KEYS
        {
            entries.push(new);
        }
    }
    entries
}

fn entry(string: &[u8]) -> Option<Entry> {
    let mut parts = string.splitn(2, |byte| *byte == b'=');
    let key = parts.next().filter(|key| !key.is_empty() && key.iter().all(|byte| (0x20..0x7f).contains(byte)))?;
    Some(Entry { key: String::from_utf8(key.to_vec()).ok()?, value: parts.next().unwrap_or_default().to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn properties(strings: &[&[u8]]) -> Vec<(String, String)> {
        let bytes: Vec<u8> = strings.iter().flat_map(|s| [&[u8::try_from(s.len()).unwrap()], *s].concat()).collect();
        entries(&bytes).iter().map(Entry::property).collect()
    }

    #[test]
    fn entries_become_properties() {
        for (strings, expected) in [
            (&[&b"ty=Laser=2"[..], b"Duplex", b"note="][..], &[("TY", "Laser=2"), ("DUPLEX", ""), ("NOTE", "")][..]),
            (&[b"usb_MFG=K\xc3\xbcche", b"a-b.c=1"], &[("USB_MFG", "Küche"), ("A_B_C", "1")]),
            (&[b"id=\x00\xff", b"line=a\nb"], &[("ID_HEX", "00ff"), ("LINE_HEX", "610a62")]),
            (&[b"A=1", b"a=2", b"", b"=x", b"\xff=x", b"\n=x"], &[("A", "1")]),
            (&[], &[]),
        ] {
            let expected = expected.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            assert_eq!(properties(strings), expected.collect::<Vec<_>>());
        }
    }

    #[test]
    fn cut_or_long_records_are_read_as_far_as_they_go() {
        assert_eq!(entries(b"\x03a=1\x05b=2").len(), 1);
        let many: Vec<u8> = (0..200).flat_map(|number| format!("\x06k{number:03}=v").into_bytes()).collect();
        assert_eq!(entries(&many).len(), MAX_KEYS);
    }
}
