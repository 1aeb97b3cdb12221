//! Frames on a stream.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _};
use zeroize::Zeroizing;

use super::protocol::LENGTH;

/// Bytes that there is memory for at once; for more the other side has to send them.
const AT_ONCE: usize = 4 << 20;

/// Reads a frame of at most `largest` bytes without its length; `None` at the end of the stream. What was read is overwritten
/// when it is dropped, since secrets may be in it.
///
/// # Errors
/// If the stream fails or ends within a frame, or if the frame is too large.
pub(crate) async fn read(
    stream: &mut (impl AsyncRead + Unpin),
    largest: usize,
) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
    let mut length = [0; LENGTH];
    if let Err(error) = stream.read_exact(&mut length).await {
        return if error.kind() == io::ErrorKind::UnexpectedEof { Ok(None) } else { Err(error) };
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > largest {
        return Err(io::Error::other(format!("a frame of {length} bytes (at most {largest})")));
    }
    let mut frame = Zeroizing::new(Vec::with_capacity(length.min(AT_ONCE)));
    let read = stream.take(length as u64).read_to_end(&mut frame).await?;
    if read < length { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(Some(frame)) }
}

#[cfg(test)]
mod tests {
    use super::super::protocol::encode;
    use super::*;

    #[tokio::test]
    async fn frames_are_read_one_by_one() {
        let frames = [encode(&1_u64, b"one").unwrap(), encode(&2_u64, &[]).unwrap()].concat();
        let mut stream = frames.as_slice();
        assert_eq!(read(&mut stream, 9).await.unwrap().unwrap().as_slice(), b"\x01one");
        assert_eq!(read(&mut stream, 9).await.unwrap().unwrap().as_slice(), b"\x02");
        assert!(read(&mut stream, 9).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn large_and_cut_frames_are_refused() {
        assert!(read(&mut [10, 0, 0, 0, 1].as_slice(), 9).await.is_err());
        assert!(read(&mut [9, 0, 0, 0, 1].as_slice(), 9).await.is_err());
        assert!(read(&mut [255; 99].as_slice(), 9).await.is_err());
    }
}
