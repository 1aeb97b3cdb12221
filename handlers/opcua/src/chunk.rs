//! OPC UA TCP framing: a byte stream is split into chunks (OPC 10000-6 §6.7.2 and §7.1.2).

use crate::binary::{self, Reader, Writer};

/// The largest accepted chunk, announced in Hello; the specification requires at least 8,192 bytes.
pub const RECEIVE_BUFFER: u32 = 65_536;

/// Length of the header: message type, chunk type and size.
const HEADER: usize = 8;

/// The message type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `ACK`: the response to Hello.
    Acknowledge,
    /// `ERR`: the server ends the connection and says why.
    Error,
    /// `OPN`: a message about the secure channel.
    Open,
    /// `MSG`: a service's response.
    Message,
}

/// The chunk type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// `C`: more chunks of the same message.
    Intermediate,
    /// `F`: the last chunk.
    Final,
    /// `A`: the server aborts the message.
    Abort,
}

/// A chunk without its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk<'a> {
    /// The message type.
    pub kind: Kind,
    /// The chunk type.
    pub place: Place,
    /// The body.
    pub body: &'a [u8],
}

/// The reason why bytes are not a chunk.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Unknown message or chunk type, with the bytes in their place.
    #[error("what came is no OPC UA: it begins with {0:?}")]
    NotOpcUa(String),
    /// Smaller than its header or larger than announced.
    #[error("it sent a chunk of {0} bytes (at most {RECEIVE_BUFFER})")]
    Size(u32),
}

/// Returns the first chunk and its length; `None` while it is incomplete. Errors are detected from its first eight
/// bytes.
///
/// # Errors
/// If the bytes are not a chunk, or it is too large.
pub fn next(bytes: &[u8]) -> Result<Option<(Chunk<'_>, usize)>, Error> {
    let Some((header, _)) = bytes.split_at_checked(HEADER) else { return Ok(None) };
    let (kind, place, size) = read_header(header)?;
    let Ok(length) = usize::try_from(size) else { return Err(Error::Size(size)) };
    if length < HEADER || size > RECEIVE_BUFFER {
        return Err(Error::Size(size));
    }
    Ok(bytes.get(HEADER..length).map(|body| (Chunk { kind, place, body }, length)))
}

fn read_header(header: &[u8]) -> Result<(Kind, Place, u32), Error> {
    let not_opc_ua = || Error::NotOpcUa(String::from_utf8_lossy(header).into_owned());
    let mut reader = Reader::new(header);
    let mut part = |count| reader.take(count).map_err(|_: binary::Error| not_opc_ua());
    let kind = match part(3)? {
        b"ACK" => Kind::Acknowledge,
        b"ERR" => Kind::Error,
        b"OPN" => Kind::Open,
        b"MSG" => Kind::Message,
        _ => return Err(not_opc_ua()),
    };
    let place = match part(1)? {
        b"C" => Place::Intermediate,
        b"F" => Place::Final,
        b"A" => Place::Abort,
        _ => return Err(not_opc_ua()),
    };
    Ok((kind, place, reader.u32().map_err(|_| not_opc_ua())?))
}

/// Returns a message of one chunk, which is enough for all requests.
pub fn write(kind: [u8; 3], body: &[u8]) -> Vec<u8> {
    let size = u32::try_from(HEADER.saturating_add(body.len())).unwrap_or(u32::MAX);
    let mut writer = Writer::default();
    writer.raw(&kind).raw(b"F").u32(size).raw(body);
    writer.into_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn chunk_is_returned_when_complete() {
        let bytes = [write(*b"ACK", b"abc"), write(*b"MSG", b"")].concat();
        for end in 0..11 {
            assert_eq!(next(&bytes[..end]), Ok(None), "{end}");
        }
        let acknowledge = Chunk { kind: Kind::Acknowledge, place: Place::Final, body: b"abc" };
        assert_eq!(next(&bytes), Ok(Some((acknowledge, 11))));
        assert_eq!(next(&bytes[11..]), Ok(Some((Chunk { kind: Kind::Message, place: Place::Final, body: b"" }, 8))));
    }

    #[test]
    fn invalid_chunk_is_detected_by_its_header() {
        for header in [b"HTTP/1.1", b"MSGX\x08\0\0\0", b"HELF\x08\0\0\0", b"msgF\x08\0\0\0", &[0; 8]] {
            assert!(matches!(next(header), Err(Error::NotOpcUa(_))), "{header:?}");
        }
        for size in [0, 7, RECEIVE_BUFFER + 1, u32::MAX] {
            let header = [b"MSGC".as_slice(), &size.to_le_bytes()].concat();
            assert_eq!(next(&header), Err(Error::Size(size)));
        }
        let largest = [b"MSGC".as_slice(), &RECEIVE_BUFFER.to_le_bytes()].concat();
        assert_eq!(next(&largest), Ok(None));
    }

    proptest! {
        #[test]
        fn chunk_lies_within_the_bytes(bytes in prop::collection::vec(any::<u8>(), 0..64), real in any::<bool>()) {
            let bytes = if real { [b"MSGF".as_slice(), &bytes].concat() } else { bytes };
            if let Ok(Some((chunk, length))) = next(&bytes) {
                prop_assert!(length <= bytes.len() && chunk.body.len() + HEADER == length);
            }
        }
    }
}
