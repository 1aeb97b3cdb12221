//! The codec of all messages.

use std::marker::PhantomData;

use prost::Message;
use tonic::codec::{BufferSettings, Codec};
use tonic_prost::ProstCodec;

/// Bytes that a stream of messages has room for at first; most messages are shorter, and the room grows. There is a stream for each
/// resource, for as long as it is registered: tonic's 8 KiB each are most of its memory.
const ROOM: usize = 512;

/// Bytes of messages that are sent at once, as tonic has it.
const AT_ONCE: usize = 32 << 10;

/// A codec for prost's messages with small buffers.
#[derive(Debug, Clone, Default)]
pub(crate) struct SmallCodec<T, U>(PhantomData<(T, U)>);

impl<T: Message + Send + 'static, U: Message + Default + Send + 'static> Codec for SmallCodec<T, U> {
    type Encode = T;
    type Decode = U;
    type Encoder = <ProstCodec<T, U> as Codec>::Encoder;
    type Decoder = <ProstCodec<T, U> as Codec>::Decoder;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::new(ROOM, AT_ONCE))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<T, U>::raw_decoder(BufferSettings::new(ROOM, AT_ONCE))
    }
}
