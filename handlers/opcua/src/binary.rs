//! OPC UA Binary, the encoding of everything on an `opc.tcp` connection: just the types that discovery meets
//! (OPC 10000-6 §5.2).
//!
//! Written here since a reply comes from any process that listens at an address, and one bad byte must cost no more than that
//! reply. `async-opcua-types`, the codec of the OPC UA ecosystem, follows nested diagnostics by recursion without a
//! bound and allocates what an XML body says it is long (up to 2 GiB); both stand in the header of every response and
//! would end the whole round. The tests hold this codec against that one.

/// Limit on a string, in bytes: longer than any useful one, shorter than a message.
const MAX_STRING: usize = 8192;

/// The reason why bytes are not a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A value ends behind the end of the message.
    #[error("it ends in the middle of a value")]
    Truncated,
    /// A length below -1, which stands for null.
    #[error("it holds a value of {0} bytes or elements")]
    Length(i32),
    /// An unknown NodeId or ExtensionObject encoding.
    #[error("it holds a value in the unknown encoding {0:#04x}")]
    Encoding(u8),
}

/// A reader of values. It copies only returned values and allocates nothing based on unchecked lengths.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Creates a reader.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Returns the unread bytes.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Returns the next bytes.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(Error::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(Error::Truncated)?;
        self.rest = rest;
        Ok(*taken)
    }

    /// A Byte.
    pub fn u8(&mut self) -> Result<u8, Error> {
        self.array().map(u8::from_le_bytes)
    }

    /// A UInt32, a StatusCode.
    pub fn u32(&mut self) -> Result<u32, Error> {
        self.array().map(u32::from_le_bytes)
    }

    /// An Int32, an enumeration.
    pub fn i32(&mut self) -> Result<i32, Error> {
        self.array().map(i32::from_le_bytes)
    }

    /// Reads the length of a string or an array; 0 for null.
    fn length(&mut self) -> Result<usize, Error> {
        match self.i32()? {
            -1 => Ok(0),
            length => usize::try_from(length).map_err(|_| Error::Length(length)),
        }
    }

    /// Reads a ByteString; null is empty.
    pub fn byte_string(&mut self) -> Result<&'a [u8], Error> {
        let length = self.length()?;
        self.take(length)
    }

    /// Reads a String; null is empty, and a long one is truncated to 8 KiB. Control characters and invalid UTF-8 are
    /// replaced by `�`: one bad name must not hide the other servers of a list, and a NUL can't be in an environment
    /// variable.
    pub fn string(&mut self) -> Result<String, Error> {
        let bytes = self.byte_string()?;
        let text = String::from_utf8_lossy(bytes.get(..MAX_STRING).unwrap_or(bytes));
        Ok(text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect())
    }

    /// Reads a number of elements of at least that size; more than the message can hold is refused.
    pub fn count(&mut self, least_size: usize) -> Result<usize, Error> {
        let count = self.length()?;
        if count.saturating_mul(least_size) > self.rest.len() {
            return Err(Error::Truncated);
        }
        Ok(count)
    }

    /// Reads the text of a LocalizedText (§5.2.2.14).
    pub fn localized_text(&mut self) -> Result<String, Error> {
        let mask = self.u8()?;
        if mask & 0x01 != 0 {
            self.byte_string()?;
        }
        if mask & 0x02 != 0 { self.string() } else { Ok(String::new()) }
    }

    /// Reads a NodeId; returns its number if it is in OPC UA's namespace (§5.2.2.9).
    pub fn node_id(&mut self) -> Result<Option<u32>, Error> {
        let (namespace, number) = match self.u8()? {
            0x00 => (0, Some(u32::from(self.u8()?))),
            0x01 => (u16::from(self.u8()?), Some(u32::from(self.u16()?))),
            0x02 => (self.u16()?, Some(self.u32()?)),
            0x03 | 0x05 => (self.u16()?, self.byte_string().map(|_| None)?),
            0x04 => (self.u16()?, self.take(16).map(|_| None)?),
            other => return Err(Error::Encoding(other)),
        };
        Ok(number.filter(|_| namespace == 0))
    }

    fn u16(&mut self) -> Result<u16, Error> {
        self.array().map(u16::from_le_bytes)
    }

    /// Skips a DiagnosticInfo with nested ones (§5.2.2.12), without recursion: a message can nest a million.
    pub fn skip_diagnostic_info(&mut self) -> Result<(), Error> {
        loop {
            let mask = self.u8()?;
            let numbers = (mask & 0x0f).count_ones(); // symbolic id, namespace, locale, text: indexes into a table
            self.take(4 * numbers as usize)?;
            if mask & 0x10 != 0 {
                self.byte_string()?; // additional info
            }
            if mask & 0x20 != 0 {
                self.u32()?; // inner status code
            }
            if mask & 0x40 == 0 {
                return Ok(());
            }
        }
    }

    /// Skips an ExtensionObject (§5.2.2.15).
    pub fn skip_extension_object(&mut self) -> Result<(), Error> {
        self.node_id()?;
        match self.u8()? {
            0x00 => Ok(()),
            0x01 | 0x02 => self.byte_string().map(|_| ()),
            other => Err(Error::Encoding(other)),
        }
    }
}

/// A writer of values.
#[derive(Debug, Clone, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Returns the written bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// A UInt32.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    /// An Int64, a DateTime.
    pub fn i64(&mut self, value: i64) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    /// A String. One of 2 GiB or more, which no message can hold, is written as null.
    pub fn string(&mut self, text: &str) -> &mut Self {
        match i32::try_from(text.len()) {
            Ok(length) => self.raw(&length.to_le_bytes()).raw(text.as_bytes()),
            Err(_) => self.null(),
        }
    }

    /// A String, ByteString or array that is null.
    pub fn null(&mut self) -> &mut Self {
        self.raw(&(-1i32).to_le_bytes())
    }

    /// A NodeId of OPC UA's own namespace.
    pub fn node_id(&mut self, number: u16) -> &mut Self {
        self.raw(&[0x01, 0x00]).raw(&number.to_le_bytes())
    }
}
