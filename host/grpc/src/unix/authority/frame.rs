//! The HTTP/2 frames that the filter parses (RFC 9113, 4.1, 6.2 and 6.10).

use std::io;

use super::malformed;

/// The length of a frame header, in bytes.
pub(super) const HEAD: usize = 9;
/// Limit on a payload: the default, which the filter keeps.
const MAX_PAYLOAD: usize = 16 << 10;
/// Lengths of the padding field and of the priority fields, in bytes.
const PADDING: usize = 1;
const PRIORITY: usize = 5;

const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const HAS_PRIORITY: u8 = 0x20;

/// Types of frames.
pub(super) const HEADERS: u8 = 0x1;
pub(super) const PUSH_PROMISE: u8 = 0x5;
pub(super) const CONTINUATION: u8 = 0x9;

/// The header of a frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    /// Bytes of payload.
    pub(super) length: usize,
    pub(super) kind: u8,
    flags: u8,
    pub(super) stream: u32,
}

impl Head {
    pub(super) fn parse(bytes: &[u8]) -> io::Result<Self> {
        let &[a, b, c, kind, flags, s0, s1, s2, s3] = bytes else {
            return Err(too_short());
        };
        let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        if length > MAX_PAYLOAD {
            return Err(malformed(format!("a frame of {length} bytes, the limit is {MAX_PAYLOAD}")));
        }
        let stream = u32::from_be_bytes([s0, s1, s2, s3]) & 0x7fff_ffff;
        Ok(Self { length, kind, flags, stream })
    }

    pub(super) fn ends_headers(self) -> bool {
        self.flags & END_HEADERS != 0
    }

    fn write(self, out: &mut Vec<u8>) {
        let length = u32::try_from(self.length).unwrap_or_default();
        out.extend(length.to_be_bytes().iter().skip(1));
        out.extend([self.kind, self.flags]);
        out.extend(self.stream.to_be_bytes());
    }
}

/// A header block, collected from a HEADERS frame and the CONTINUATION frames after it.
pub(super) struct Block {
    pub(super) stream: u32,
    /// The flags that are kept: END_STREAM and PRIORITY.
    flags: u8,
    priority: Vec<u8>,
    pub(super) fragment: Vec<u8>,
}

impl Block {
    /// Parses the payload of a HEADERS frame. Padding is dropped: flow control does not count it here.
    pub(super) fn begin(head: Head, payload: &[u8]) -> io::Result<Self> {
        let (padding, rest) = split(payload, if head.flags & PADDED != 0 { PADDING } else { 0 })?;
        let (priority, rest) = split(rest, if head.flags & HAS_PRIORITY != 0 { PRIORITY } else { 0 })?;
        let padding = padding.first().copied().map_or(0, usize::from);
        let length = rest.len().checked_sub(padding).ok_or_else(too_short)?;
        let (fragment, _) = split(rest, length)?;
        Ok(Self {
            stream: head.stream,
            flags: head.flags & (END_STREAM | HAS_PRIORITY),
            priority: priority.to_vec(),
            fragment: fragment.to_vec(),
        })
    }

    /// Writes the block as one HEADERS frame and as many CONTINUATION frames as needed.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let payload = [self.priority.as_slice(), &self.fragment].concat();
        let mut pieces = payload.chunks(MAX_PAYLOAD).peekable();
        let (mut kind, mut flags) = (HEADERS, self.flags);
        loop {
            let piece = pieces.next().unwrap_or_default();
            let last = if pieces.peek().is_none() { END_HEADERS } else { 0 };
            Head { length: piece.len(), kind, flags: flags | last, stream: self.stream }.write(out);
            out.extend_from_slice(piece);
            if last != 0 {
                return;
            }
            (kind, flags) = (CONTINUATION, 0);
        }
    }
}

fn too_short() -> io::Error {
    malformed("a header frame shorter than its padding or priority")
}

fn split(bytes: &[u8], at: usize) -> io::Result<(&[u8], &[u8])> {
    bytes.split_at_checked(at).ok_or_else(too_short)
}
