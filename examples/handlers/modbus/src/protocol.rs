//! Read Device Identification (Modbus Application Protocol 1.1b3, section 6.21) in frames of Modbus/TCP.

use std::collections::BTreeMap;

/// Bytes before the unit id: transaction, protocol and length.
pub const HEADER_BYTES: usize = 6;
/// Limit on what follows the header: the unit id and 253 bytes.
const MAX_BODY: usize = 254;
const ENCAPSULATED: u8 = 0x2b;
const IDENTIFICATION: u8 = 0x0e;
/// Vendor, product code and revision, as a stream of objects.
const BASIC: u8 = 1;
const EXCEPTION: u8 = 0x80;

/// The identification of a unit: the texts of vendor, product code and revision by object.
pub type Objects = BTreeMap<u8, String>;

/// A response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Response {
    /// Objects, and the one at which to continue.
    Objects(Objects, Option<u8>),
    /// The unit exists, but has no identification.
    Unidentified,
    /// It has no time to answer now.
    Busy,
    /// A gateway reports that the unit does not answer.
    Absent,
}

/// The defect of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("its answer is malformed, or of another request")]
pub struct Malformed;

/// Numbers requests. They run on over units, so that a late answer for one is none for the next.
#[derive(Debug, Clone, Copy, Default)]
pub struct Transactions(u16);

impl Transactions {
    /// Returns a number that was not used of late.
    pub fn number(&mut self) -> u16 {
        self.0 = self.0.wrapping_add(1);
        self.0
    }
}

/// Encodes a request for objects from `object` on.
pub fn request(transaction: u16, unit: u8, object: u8) -> [u8; 11] {
    let [high, low] = transaction.to_be_bytes();
    [high, low, 0, 0, 0, 5, unit, ENCAPSULATED, IDENTIFICATION, BASIC, object]
}

/// Returns the number of bytes that follow a header.
///
/// # Errors
/// If the header is of another transaction or protocol, or the length is out of bounds.
pub fn body_length(transaction: u16, header: [u8; HEADER_BYTES]) -> Result<usize, Malformed> {
    let [t0, t1, p0, p1, l0, l1] = header;
    let length = usize::from(u16::from_be_bytes([l0, l1]));
    let is_ours = [t0, t1] == transaction.to_be_bytes() && [p0, p1] == [0, 0];
    (is_ours && (3..=MAX_BODY).contains(&length)).then_some(length).ok_or(Malformed)
}

/// Parses what follows the header.
///
/// # Errors
/// If it is of another unit or function, or cut.
pub fn response(unit: u8, body: &[u8]) -> Result<Response, Malformed> {
    match body {
        [of, function, code, ..] if *of == unit && *function == ENCAPSULATED | EXCEPTION => Ok(match code {
            0x05 | 0x06 => Response::Busy,
            0x0a | 0x0b => Response::Absent,
            _ => Response::Unidentified,
        }),
        [of, ENCAPSULATED, IDENTIFICATION, _, _, more, next, count, objects @ ..] if *of == unit => {
            let next = (*more != 0).then_some(*next);
            Ok(Response::Objects(parse_objects(objects, *count).ok_or(Malformed)?, next))
        }
        _ => Err(Malformed),
    }
}

fn parse_objects(mut bytes: &[u8], count: u8) -> Option<Objects> {
    let mut objects = Objects::new();
    for _ in 0..count {
        let [object, length, rest @ ..] = bytes else { return None };
        let (text, rest) = rest.split_at_checked(usize::from(*length))?;
        objects.insert(*object, printable(text));
        bytes = rest;
    }
    Some(objects)
}

/// Returns text without padding. Devices pad with zeros and spaces.
fn printable(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.chars().filter(|c| !c.is_control()).collect::<String>().trim().to_owned()
}

/// Returns the properties of a unit.
pub fn properties(objects: &Objects) -> impl Iterator<Item = (&'static str, String)> {
    let names = [(0, "MODBUS_VENDOR"), (1, "MODBUS_PRODUCT_CODE"), (2, "MODBUS_REVISION")];
    let value = |object| objects.get(&object).filter(|value| !value.is_empty()).cloned();
    names.into_iter().filter_map(move |(object, name)| Some((name, value(object)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &[u8] = b"\x01\x2b\x0e\x01\x83\x00\x00\x03\x00\x04Acme\x01\x06PLC-7\0\x02\x032.1";

    #[test]
    fn identification_becomes_properties() {
        let Ok(Response::Objects(objects, None)) = response(1, ANSWER) else { panic!("{:?}", response(1, ANSWER)) };
        let expected = [("MODBUS_VENDOR", "Acme"), ("MODBUS_PRODUCT_CODE", "PLC-7"), ("MODBUS_REVISION", "2.1")];
        assert_eq!(properties(&objects).collect::<Vec<_>>(), expected.map(|(name, value)| (name, value.to_owned())));
    }

    #[test]
    fn long_identification_is_continued() {
        let mut answer = ANSWER.to_vec();
        (answer[5], answer[6]) = (0xff, 2);
        assert!(matches!(response(1, &answer), Ok(Response::Objects(_, Some(2)))));
        assert_eq!(request(0x102, 7, 2), [1, 2, 0, 0, 0, 5, 7, 0x2b, 0x0e, 1, 2]);
    }

    #[test]
    fn exceptions_show_whether_the_unit_exists() {
        for (code, expected) in [
            (1, Response::Unidentified),
            (4, Response::Unidentified),
            (5, Response::Busy),
            (6, Response::Busy),
            (10, Response::Absent),
            (11, Response::Absent),
        ] {
            assert_eq!(response(1, &[1, 0xab, code]), Ok(expected), "{code}");
        }
    }

    #[test]
    fn late_answer_is_none_to_the_next_request() {
        let mut transactions = Transactions::default();
        let (first, second) = (transactions.number(), transactions.number());
        let late = [request(first, 1, 0)[0], request(first, 1, 0)[1], 0, 0, 0, 9];
        assert_eq!((body_length(first, late), body_length(second, late)), (Ok(9), Err(Malformed)));
        assert_eq!(Transactions(u16::MAX).number(), 0);
    }

    #[test]
    fn malformed_answers_are_refused() {
        for length in 0..ANSWER.len() {
            assert_eq!(response(1, &ANSWER[..length]), Err(Malformed), "{length}");
        }
        assert_eq!(response(2, ANSWER), Err(Malformed), "of another unit");
        for header in [[0, 2, 0, 0, 0, 9], [0, 1, 0, 1, 0, 9], [0, 1, 0, 0, 0, 2], [0, 1, 0, 0, 1, 0]] {
            assert_eq!(body_length(1, header), Err(Malformed), "{header:?}");
        }
        assert_eq!(body_length(1, [0, 1, 0, 0, 0, 254]), Ok(254));
    }
}
