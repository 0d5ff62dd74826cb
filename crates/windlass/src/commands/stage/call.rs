//! Work by an existing gRPC service: the payload is an encoded request, the result is the encoded response.

use bytes::{Buf as _, BufMut as _, Bytes};
use tonic::{
    Request, Status,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::http::uri::PathAndQuery,
    transport::{Channel, Endpoint},
};

use crate::cli::Call;

/// Client of a service. It connects for the first item, and reconnects automatically.
#[derive(Clone, Debug)]
pub(super) struct Client {
    call: Call,
    channel: Result<Channel, String>,
}

/// Reason why a service returned no result.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    #[error("{server} is not an address: {reason}")]
    Address { server: String, reason: String },
    #[error("{method} at {server} answered {code}: {message}", code = .status.code(), message = .status.message())]
    Refused { method: String, server: String, status: Box<Status> },
}

/// Codec that leaves messages encoded.
#[derive(Clone, Copy, Debug, Default)]
struct RawCodec;

// === impl Client ===

impl Client {
    /// Creates a client, which connects for the first item.
    pub(super) fn new(call: Call) -> Self {
        let endpoint = Endpoint::from_shared(call.server.clone());
        let channel =
            endpoint.map(|endpoint| endpoint.connect_lazy()).map_err(|error| error.to_string());
        Self { call, channel }
    }

    pub(super) async fn call(self, payload: Bytes) -> Result<Bytes, CallError> {
        let Call { server, method } = self.call;
        let address_error = |reason: String| CallError::Address { server: server.clone(), reason };
        let channel = self.channel.map_err(address_error)?;
        let path: PathAndQuery =
            method.parse().map_err(|error| address_error(format!("{error}")))?;
        let status_error = |status: Status| CallError::Refused {
            method: method.clone(),
            server: server.clone(),
            status: Box::new(status),
        };
        let mut client = Grpc::new(channel)
            .max_decoding_message_size(usize::MAX)
            .max_encoding_message_size(usize::MAX);
        client
            .ready()
            .await
            .map_err(|error| status_error(Status::unavailable(error.to_string())))?;
        let answer =
            client.unary(Request::new(payload), path, RawCodec).await.map_err(status_error)?;
        Ok(answer.into_inner())
    }
}

// === impl RawCodec ===

impl Codec for RawCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(message);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let length = buffer.remaining();
        Ok(Some(buffer.copy_to_bytes(length)))
    }
}
