//! Messages of multicast DNS: questions, and the records of responses.
//!
//! Anybody on the network can send a response. Names, pointers in names and records are bounded, and a malformed
//! response is dropped as a whole.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::name::{MAX_LABEL, Name};

/// Limit on the records of a response.
pub const MAX_RECORDS: usize = 1_024;
/// Limit on the pointers of a name. A well compressed name has one.
const MAX_POINTERS: usize = 16;
/// Size of a message with several questions, in bytes: Avahi repeats them in its response, which has 512 bytes at most.
const QUERY_BYTES: usize = 256;
const HEADER_BYTES: usize = 12;
/// Class `IN`.
const INTERNET: u16 = 1;
/// The bit of a class that asks for, or announces, something else; not a part of the class (RFC 6762, section 18).
const CLASS_FLAG: u16 = 0x8000;
const RESPONSE: u16 = 0x8000;
/// Operation and response code, which are 0.
const CODES: u16 = 0x780f;

/// The types of records that are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// `A`.
    Ipv4 = 1,
    /// `PTR`.
    Pointer = 12,
    /// `TXT`.
    Text = 16,
    /// `AAAA`.
    Ipv6 = 28,
    /// `SRV`.
    Service = 33,
}

/// A question.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Question {
    /// The name asked about.
    pub name: Name,
    /// The type of the records asked for.
    pub kind: Kind,
}

/// A record of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The name it is about.
    pub name: Name,
    /// False if the record is withdrawn: its time to live is 0.
    pub is_valid: bool,
    /// The content.
    pub data: Data,
}

/// The content of a record. Records of other types are left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Data {
    /// The name of an instance of a service.
    Pointer(Name),
    /// The port and the host of an instance.
    Service {
        /// The port.
        port: u16,
        /// The host.
        host: Name,
    },
    /// The strings of a `TXT` record, each after its length.
    Text(Vec<u8>),
    /// An address of a host.
    Address(IpAddr),
}

/// The defect of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// It ends within a field.
    #[error("it ends within a record")]
    Truncated,
    /// A name is too long, or its pointers lead forward or in a circle.
    #[error("a name in it is malformed")]
    Name,
    /// It has too many records.
    #[error("it has more than {MAX_RECORDS} records")]
    TooMany,
    /// The data of a record has the wrong length.
    #[error("a record in it is malformed")]
    Record,
}

/// Distributes questions among as many messages as are required.
pub fn packed(questions: impl IntoIterator<Item = Question>) -> Vec<Vec<Question>> {
    let (mut messages, mut room) = (Vec::<Vec<Question>>::new(), 0);
    for question in questions {
        let length = question.name.encoded_len() + 4;
        match messages.last_mut().filter(|_| length <= room) {
            Some(message) => message.push(question),
            None => {
                messages.push(vec![question]);
                room = QUERY_BYTES - HEADER_BYTES;
            }
        }
        room = room.saturating_sub(length);
    }
    messages
}

/// Encodes a message with questions.
pub fn query(questions: &[Question]) -> Vec<u8> {
    let mut message = vec![0; HEADER_BYTES];
    message.splice(4..6, u16::try_from(questions.len()).unwrap_or(u16::MAX).to_be_bytes());
    for Question { name, kind } in questions {
        name.encode(&mut message);
        message.extend((*kind as u16).to_be_bytes());
        message.extend(INTERNET.to_be_bytes());
    }
    message
}

/// Parses a response; none of a message that is not one, such as a question of others.
///
/// # Errors
/// The defect.
pub fn read(message: &[u8]) -> Result<Vec<Record>, MessageError> {
    let mut reader = Reader { message, at: 2 };
    let flags = reader.u16()?;
    if flags & RESPONSE == 0 || flags & CODES != 0 {
        return Ok(Vec::new());
    }
    let questions = reader.u16()?;
    let counts = [reader.u16()?, reader.u16()?, reader.u16()?];
    let records: usize = counts.into_iter().map(usize::from).sum();
    if records > MAX_RECORDS || usize::from(questions) > MAX_RECORDS {
        return Err(MessageError::TooMany);
    }
    for _ in 0..questions {
        reader.name()?;
        reader.bytes(4)?;
    }
    let records = (0..records).map(|_| reader.record()).collect::<Result<Vec<_>, _>>()?;
    Ok(records.into_iter().flatten().collect())
}

/// Parses a name at an offset, and returns the offset of what follows it.
pub fn name_at(bytes: &[u8], at: usize) -> Option<(Name, usize)> {
    let mut reader = Reader { message: bytes, at };
    let name = reader.name().ok()?;
    Some((name, reader.at))
}

struct Reader<'a> {
    message: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8], MessageError> {
        let end = self.at.checked_add(count).ok_or(MessageError::Truncated)?;
        let bytes = self.message.get(self.at..end).ok_or(MessageError::Truncated)?;
        self.at = end;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], MessageError> {
        self.bytes(N)?.try_into().map_err(|_| MessageError::Truncated)
    }

    fn u16(&mut self) -> Result<u16, MessageError> {
        self.array().map(u16::from_be_bytes)
    }

    /// Reads a name, which may end with a pointer to an earlier one.
    fn name(&mut self) -> Result<Name, MessageError> {
        let mut name = Name::default();
        let (mut pointers, mut start) = (0, self.at);
        let mut end = None;
        loop {
            let [length] = self.array()?;
            match usize::from(length) {
                0 => break,
                length if length <= MAX_LABEL => {
                    let label = self.bytes(length)?;
                    if !name.push(label) {
                        return Err(MessageError::Name);
                    }
                }
                length if length >= 0xc0 => {
                    let [low] = self.array()?;
                    let target = (length & 0x3f) << 8 | usize::from(low);
                    pointers += 1;
                    // Each leads further back than what is being read, so that there is no circle.
                    if target >= start || pointers > MAX_POINTERS {
                        return Err(MessageError::Name);
                    }
                    end = end.or(Some(self.at));
                    (self.at, start) = (target, target);
                }
                _ => return Err(MessageError::Name),
            }
        }
        self.at = end.unwrap_or(self.at);
        Ok(name)
    }

    fn record(&mut self) -> Result<Option<Record>, MessageError> {
        let name = self.name()?;
        let (kind, class) = (self.u16()?, self.u16()?);
        let is_valid = self.array::<4>()? != [0; 4];
        let length = usize::from(self.u16()?);
        let start = self.at;
        let data = self.bytes(length)?;
        if class & !CLASS_FLAG != INTERNET {
            return Ok(None);
        }
        let mut content = Self { message: self.message, at: start };
        let data = match kind {
            kind if kind == Kind::Pointer as u16 => Data::Pointer(content.name()?),
            kind if kind == Kind::Service as u16 => {
                content.bytes(4)?; // priority and weight: a device has one host
                Data::Service { port: content.u16()?, host: content.name()? }
            }
            kind if kind == Kind::Text as u16 => {
                return Ok(Some(Record { name, is_valid, data: Data::Text(data.to_vec()) }));
            }
            kind if kind == Kind::Ipv4 as u16 => Data::Address(Ipv4Addr::from(content.array::<4>()?).into()),
            kind if kind == Kind::Ipv6 as u16 => Data::Address(Ipv6Addr::from(content.array::<16>()?).into()),
            _ => return Ok(None),
        };
        if content.at != self.at {
            return Err(MessageError::Record);
        }
        Ok(Some(Record { name, is_valid, data }))
    }
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
