//! The HTTP/2 frames that the filter parses (RFC 9113, 4.1, 6.2 and 6.10).

use super::Malformed;

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

/// The type of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameKind {
    Headers,
    PushPromise,
    Continuation,
    Other(u8),
}

impl From<u8> for FrameKind {
    fn from(byte: u8) -> Self {
        match byte {
            0x1 => Self::Headers,
            0x5 => Self::PushPromise,
            0x9 => Self::Continuation,
            other => Self::Other(other),
        }
    }
}

impl From<FrameKind> for u8 {
    fn from(kind: FrameKind) -> Self {
        match kind {
            FrameKind::Headers => 0x1,
            FrameKind::PushPromise => 0x5,
            FrameKind::Continuation => 0x9,
            FrameKind::Other(other) => other,
        }
    }
}

/// The header of a frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    /// Bytes of payload.
    pub(super) length: usize,
    pub(super) kind: FrameKind,
    flags: u8,
    pub(super) stream: u32,
}

impl Head {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let &[a, b, c, kind, flags, s0, s1, s2, s3] = bytes else {
            return Err(Malformed::FrameTooShort);
        };
        let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        if length > MAX_PAYLOAD {
            return Err(Malformed::FrameSize(length));
        }
        let stream = u32::from_be_bytes([s0, s1, s2, s3]) & 0x7fff_ffff;
        Ok(Self { length, kind: kind.into(), flags, stream })
    }

    pub(super) fn ends_headers(self) -> bool {
        self.flags & END_HEADERS != 0
    }

    fn write(self, out: &mut Vec<u8>) {
        let length = u32::try_from(self.length).unwrap_or_default();
        out.extend(length.to_be_bytes().iter().skip(1));
        out.extend([self.kind.into(), self.flags]);
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
    pub(super) fn begin(head: Head, payload: &[u8]) -> Result<Self, Malformed> {
        let (padding, rest) = split(payload, if head.flags & PADDED != 0 { PADDING } else { 0 })?;
        let (priority, rest) = split(rest, if head.flags & HAS_PRIORITY != 0 { PRIORITY } else { 0 })?;
        let padding = padding.first().copied().map_or(0, usize::from);
        let length = rest.len().checked_sub(padding).ok_or(Malformed::FrameTooShort)?;
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
        let (mut kind, mut flags) = (FrameKind::Headers, self.flags);
        loop {
            let piece = pieces.next().unwrap_or_default();
            let last = if pieces.peek().is_none() { END_HEADERS } else { 0 };
            Head { length: piece.len(), kind, flags: flags | last, stream: self.stream }.write(out);
            out.extend_from_slice(piece);
            if last != 0 {
                return;
            }
            (kind, flags) = (FrameKind::Continuation, 0);
        }
    }
}

fn split(bytes: &[u8], at: usize) -> Result<(&[u8], &[u8]), Malformed> {
    bytes.split_at_checked(at).ok_or(Malformed::FrameTooShort)
}
