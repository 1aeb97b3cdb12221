//! Messages between the agent and a sandbox process.
//!
//! A frame is its length (four bytes, little-endian), a message in the postcard format, and a payload that the message
//! announces: the bytes of a component, or devices one after the other. Of many devices some come in frames before the answer, so
//! that the agent decodes them while others are encoded. Neither side trusts the other with its memory: frames,
//! lists and the number of all elements are bounded, and what does not decode ends the connection.

mod byte_values;
mod device_set;
mod reply;
mod request;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeOwned, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

pub(crate) use self::device_set::{DeviceSetHead, ReceivedDevices, encode_devices, split};
pub(crate) use self::reply::{CacheEntries, Failure, Line, LoadFailure, LoadedComponent, Reply, level_of, number_of};
pub(crate) use self::request::{Arguments, Request, encode_secret};

/// Bytes of a frame to the sandbox process: the largest component, and what comes with it.
pub(crate) const LARGEST_REQUEST: usize = 96 << 20;
/// Bytes of a frame to the agent: devices, kept origins and cache of a round, each of up to 16 MiB.
pub(crate) const LARGEST_REPLY: usize = 56 << 20;
/// Bytes of the length before each frame.
pub(crate) const LENGTH: usize = 4;

/// An error of decoding a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("malformed message: {0}")]
pub(crate) struct ProtocolError(String);

/// A list of at most `N` elements: more are refused before there is memory for them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(crate) struct Bounded<T, const N: usize>(pub(crate) Vec<T>);

impl<'de, T: Deserialize<'de>, const N: usize> Deserialize<'de> for Bounded<T, N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List<T, const N: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const N: usize> Visitor<'de> for List<T, N> {
            type Value = Vec<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "at most {N} elements")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<T>, A::Error> {
                if elements.size_hint().is_some_and(|count| count > N) {
                    return Err(A::Error::custom("too many elements"));
                }
                let mut list = Vec::new();
                while let Some(element) = elements.next_element()? {
                    if list.len() >= N {
                        return Err(A::Error::custom("too many elements"));
                    }
                    list.push(element);
                }
                Ok(list)
            }
        }
        deserializer.deserialize_seq(List::<T, N>(PhantomData)).map(Self)
    }
}

/// Decodes a map of at most so many entries, whose values are converted: more are refused before there is memory for them.
fn bounded_map<'de, V: Deserialize<'de>, T, D: Deserializer<'de>>(
    deserializer: D,
    most: usize,
    convert: fn(V) -> T,
) -> Result<BTreeMap<String, T>, D::Error> {
    struct Entries<V, T>(usize, fn(V) -> T);
    impl<'de, V: Deserialize<'de>, T> Visitor<'de> for Entries<V, T> {
        type Value = BTreeMap<String, T>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {} entries", self.0)
        }
        fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
            let Self(most, convert) = self;
            let mut map = BTreeMap::new();
            while let Some((key, value)) = entries.next_entry()? {
                if map.len() >= most {
                    return Err(A::Error::custom("too many entries"));
                }
                map.insert(key, convert(value));
            }
            Ok(map)
        }
    }
    deserializer.deserialize_map(Entries(most, convert))
}

impl<T, const N: usize> Default for Bounded<T, N> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T, const N: usize> FromIterator<T> for Bounded<T, N> {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Self {
        Self(elements.into_iter().collect())
    }
}

impl ProtocolError {
    pub(crate) fn new(text: impl fmt::Display) -> Self {
        Self(text.to_string())
    }
}

fn malformed(error: postcard::Error) -> ProtocolError {
    ProtocolError::new(error)
}

/// Returns a frame of a message and a payload.
///
/// # Errors
/// If it is too large.
pub(crate) fn encode(message: &impl Serialize, payload: &[u8]) -> Result<Vec<u8>, ProtocolError> {
    let mut frame = postcard::to_extend(message, vec![0; LENGTH]).map_err(malformed)?;
    frame.extend_from_slice(payload);
    with_length(frame)
}

fn with_length(mut frame: Vec<u8>) -> Result<Vec<u8>, ProtocolError> {
    let length = u32::try_from(frame.len() - LENGTH).map_err(|_| ProtocolError("too large".to_owned()))?;
    if let Some(start) = frame.first_chunk_mut() {
        *start = length.to_le_bytes();
    }
    Ok(frame)
}

/// Decodes a frame without its length; also returns its payload.
///
/// # Errors
/// If it is no such message.
pub(crate) fn decode<T: DeserializeOwned>(frame: &[u8]) -> Result<(T, &[u8]), ProtocolError> {
    postcard::take_from_bytes(frame).map_err(malformed)
}
