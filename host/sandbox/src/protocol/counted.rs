//! Decoding within a bound on elements: a few bytes can encode a large list.

use std::io;

use postcard::Deserializer;
use postcard::de_flavors::Flavor;

use super::malformed;

/// Elements of all lists and maps of a message, about. Each property takes two, and 16 bytes of the 16 MiB that a guest may return.
const ELEMENTS: usize = 3 << 20;

/// The bytes of a message. Each element of a list or a map, and each length, takes one that is read by itself.
pub(super) struct CountedBytes<'de> {
    bytes: &'de [u8],
    elements: usize,
}

impl<'de> Flavor<'de> for CountedBytes<'de> {
    type Remainder = Self;
    type Source = &'de [u8];

    fn pop(&mut self) -> postcard::Result<u8> {
        self.elements += 1;
        if self.elements > ELEMENTS {
            return Err(postcard::Error::SerdeDeCustom);
        }
        let [byte] = self.try_take_n(1)? else { return Err(postcard::Error::DeserializeUnexpectedEnd) };
        Ok(*byte)
    }

    fn try_take_n(&mut self, count: usize) -> postcard::Result<&'de [u8]> {
        let taken = self.bytes.split_at_checked(count);
        let (taken, rest) = taken.ok_or(postcard::Error::DeserializeUnexpectedEnd)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn finalize(self) -> postcard::Result<Self> {
        Ok(self)
    }
}

/// Decodes a value, and adds its elements to those of the same answer, which are bounded together. Returns it with the bytes
/// behind it.
pub(super) fn decode_counted<'de, T>(
    bytes: &'de [u8],
    elements: &mut usize,
    deserialize: impl FnOnce(&mut Deserializer<'de, CountedBytes<'de>>) -> postcard::Result<T>,
) -> io::Result<(T, &'de [u8])> {
    let mut deserializer = Deserializer::from_flavor(CountedBytes { bytes, elements: *elements });
    let value = deserialize(&mut deserializer).map_err(malformed)?;
    let rest = deserializer.finalize().map_err(malformed)?;
    *elements = rest.elements;
    Ok((value, rest.bytes))
}
