//! A codec that leaves messages undecoded: of a fast stream only the last message is decoded.

use std::marker::PhantomData;

use bytes::{Buf as _, Bytes};
use prost::Message;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// Encodes requests and returns responses as bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RawCodec<M>(PhantomData<M>);

impl<M: Message + 'static> Codec for RawCodec<M> {
    type Encode = M;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self(PhantomData)
    }

    fn decoder(&mut self) -> Self {
        Self(PhantomData)
    }
}

impl<M: Message> Encoder for RawCodec<M> {
    type Item = M;
    type Error = Status;

    fn encode(&mut self, message: M, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        message.encode(buffer).map_err(|error| Status::internal(error.to_string()))
    }
}

impl<M> Decoder for RawCodec<M> {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}
