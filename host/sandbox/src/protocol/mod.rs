//! Messages between the agent and a sandbox process.
//!
//! A frame is its length (four bytes, little-endian), a message in the postcard format, and a payload that the message
//! announces: the bytes of a component, or devices one after the other. Of many devices some come in frames before the answer, so
//! that the agent decodes them while others are encoded. Neither side trusts the other with its memory: frames and the number of
//! all elements are bounded, and what does not decode ends the connection.

mod byte_values;
mod counted;
mod devices;
mod reply;
mod request;
#[cfg(test)]
mod tests;

use std::fmt::Display;
use std::io;

use postcard::experimental::serialized_size;
use serde::Serialize;
use serde::de::DeserializeOwned;

use self::counted::decode_counted;
pub(crate) use self::devices::{ReceivedDevices, encode_devices};
pub(crate) use self::reply::{CacheEntries, LoadedComponent, Reply};
pub(crate) use self::request::{Arguments, Export, Request};

/// Bytes of a frame to the sandbox process: the largest component, and what comes with it.
pub(crate) const LARGEST_REQUEST: usize = 96 << 20;
/// Bytes of a frame to the agent: devices, kept origins and cache of a round, each of up to 16 MiB.
pub(crate) const LARGEST_REPLY: usize = 56 << 20;
/// Bytes of the length before each frame.
pub(crate) const LENGTH: usize = 4;

/// Returns the error of a message that can't be encoded or decoded.
pub(crate) fn malformed(why: impl Display) -> io::Error {
    io::Error::other(format!("malformed message: {why}"))
}

/// Returns a frame of a message and a payload.
///
/// # Errors
/// If it is too large.
pub(crate) fn encode(message: &impl Serialize, payload: &[u8]) -> io::Result<Vec<u8>> {
    // A buffer that grew would leave copies of secrets.
    let mut frame = Vec::with_capacity(LENGTH + serialized_size(message).map_err(malformed)? + payload.len());
    frame.resize(LENGTH, 0);
    let mut frame = postcard::to_extend(message, frame).map_err(malformed)?;
    frame.extend_from_slice(payload);
    with_length(frame)
}

fn with_length(mut frame: Vec<u8>) -> io::Result<Vec<u8>> {
    let length = u32::try_from(frame.len() - LENGTH).map_err(malformed)?;
    if let Some(start) = frame.first_chunk_mut() {
        *start = length.to_le_bytes();
    }
    Ok(frame)
}

/// Decodes a frame without its length; also returns its payload.
///
/// # Errors
/// If it is no such message.
pub(crate) fn decode<T: DeserializeOwned>(frame: &[u8]) -> io::Result<(T, &[u8])> {
    decode_counted(frame, &mut 0, |bytes| T::deserialize(bytes))
}
