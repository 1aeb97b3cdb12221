//! The fields of a header block, as far as their lengths (RFC 7541, 5 and 6). Nothing is decoded, so that no state is kept.

/// The name that gets another value: its index in the static table, itself, and in Huffman code (RFC 7541, appendices A and B).
const INDEX: usize = 1;
const NAME: &[u8] = b":authority";
const CODED_NAME: &[u8] = &[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];

/// The value that it gets, or the beginning of this. A longer value than the peer sent would take more of the dynamic table, which could
/// then forget an entry that the peer still refers to. Only an empty value, which is not valid, becomes longer.
const HOST: &[u8] = b"localhost";

/// The longest Huffman code, in bits.
const LONGEST_CODE: usize = 30;

/// A literal field with a name of the static table that stays out of the dynamic one.
const LITERAL: &[u8] = &[INDEX as u8];

/// Returns a header block in which each authority that is not of the dynamic table is a valid one. From a malformed field on it stays as it
/// is: whoever decodes it refuses it.
pub(super) fn with_valid_authority(block: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::with_capacity(block.len()), block);
    while let Some(field) = Field::read(rest) {
        if let Some(value) = field.authority {
            let host = HOST.get(..value.shortest().max(1)).unwrap_or(HOST);
            out.extend_from_slice(field.before_value);
            out.extend(u8::try_from(host.len()));
            out.extend_from_slice(host);
        } else {
            out.extend_from_slice(before(rest, field.rest));
        }
        rest = field.rest;
    }
    out.extend_from_slice(rest);
    out
}

/// A header field, or a change of the dynamic table's size.
struct Field<'b> {
    before_value: &'b [u8],
    /// Its value, if its name is `:authority`.
    authority: Option<Text<'b>>,
    /// The bytes after it.
    rest: &'b [u8],
}

impl<'b> Field<'b> {
    fn read(bytes: &'b [u8]) -> Option<Self> {
        let (prefix, is_literal) = match bytes.first()? {
            0x80.. => (7, false),
            0x40.. => (6, true),
            0x20.. => (5, false),
            _ => (4, true),
        };
        let (index, rest) = integer(bytes, prefix)?;
        if !is_literal {
            let is_empty = prefix == 7 && index == INDEX; // the static table has an empty value
            let authority = is_empty.then_some(Text { bytes: &[], is_coded: false });
            return Some(Self { before_value: LITERAL, authority, rest });
        }
        let (is_authority, at_value) = match index {
            0 => Text::read(rest).map(|(name, rest)| (name.is_authority(), rest))?,
            index => (index == INDEX, rest),
        };
        let (value, rest) = Text::read(at_value)?;
        let authority = is_authority.then_some(value);
        Some(Self { before_value: before(bytes, at_value), authority, rest })
    }
}

/// Returns the bytes before some that are the last of them.
fn before<'b>(bytes: &'b [u8], last: &[u8]) -> &'b [u8] {
    bytes.get(..bytes.len().saturating_sub(last.len())).unwrap_or_default()
}

/// A string literal.
struct Text<'b> {
    bytes: &'b [u8],
    is_coded: bool,
}

impl<'b> Text<'b> {
    fn read(bytes: &'b [u8]) -> Option<(Self, &'b [u8])> {
        let is_coded = bytes.first()? & 0x80 != 0;
        let (length, after) = integer(bytes, 7)?;
        let (text, rest) = after.split_at_checked(length)?;
        Some((Self { bytes: text, is_coded }, rest))
    }

    fn is_authority(&self) -> bool {
        self.bytes == if self.is_coded { CODED_NAME } else { NAME }
    }

    /// Returns the least number of characters that it has.
    fn shortest(&self) -> usize {
        let length = self.bytes.len();
        if self.is_coded { (8 * length).saturating_sub(7).div_ceil(LONGEST_CODE) } else { length }
    }
}

/// Reads an integer from the last bits of a byte and, if these are all set, from the bytes after it (RFC 7541, 5.1). Returns what follows.
fn integer(bytes: &[u8], prefix: u32) -> Option<(usize, &[u8])> {
    let (first, mut rest) = bytes.split_first()?;
    let most = (1 << prefix) - 1;
    let mut value = usize::from(*first) & most;
    if value < most {
        return Some((value, rest));
    }
    for shift in [0, 7, 14, 21] {
        let (byte, after) = rest.split_first()?;
        value += (usize::from(*byte) & 0x7f) << shift;
        rest = after;
        if byte & 0x80 == 0 {
            return Some((value, rest));
        }
    }
    None
}
