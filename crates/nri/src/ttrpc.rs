//! Encoding of ttrpc messages into frames.

use prost::Message as _;

use crate::{
    decoder::{MESSAGE_HEADER, Service},
    messages::{Request, Response, Status},
};

/// Message type of a request.
pub(crate) const REQUEST: u8 = 1;
/// Message type of a response.
pub(crate) const RESPONSE: u8 = 2;

/// Largest frame sent. The runtime expects each frame in one read, through a buffer of 4096 bytes (`bufio`).
const MAX_SENT_FRAME: usize = 4096;

/// `codes.Unknown` of gRPC, which a Go server returns for an error without a code.
const CODE_UNKNOWN: i32 = 2;
/// `codes.Unimplemented`.
pub(crate) const CODE_UNIMPLEMENTED: i32 = 12;

/// Error response to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallError {
    pub(crate) code: i32,
    pub(crate) message: String,
}

// === impl CallError ===

impl CallError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { code: CODE_UNKNOWN, message: message.into() }
    }
}

/// Frames of a call of the runtime.
pub(crate) fn request(stream: u32, request: &Request) -> Vec<u8> {
    frames(Service::Runtime, stream, REQUEST, &request.encode_to_vec())
}

/// Frames of a response to a call of the plugin.
pub(crate) fn response(stream: u32, result: Result<Vec<u8>, CallError>) -> Vec<u8> {
    let response = match result {
        Ok(payload) => Response { status: None, payload },
        Err(CallError { code, message }) => {
            Response { status: Some(Status { code, message }), payload: Vec::new() }
        }
    };
    frames(Service::Plugin, stream, RESPONSE, &response.encode_to_vec())
}

/// Frames of one message.
fn frames(service: Service, stream: u32, kind: u8, body: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(MESSAGE_HEADER + body.len());
    message.extend(length(body).to_be_bytes());
    message.extend(stream.to_be_bytes());
    message.extend([kind, 0]);
    message.extend(body);
    let framed = message.chunks(MAX_SENT_FRAME).map(|chunk| {
        let header = [(service as u32).to_be_bytes(), length(chunk).to_be_bytes()].concat();
        [&header, chunk].concat()
    });
    framed.collect::<Vec<_>>().concat()
}

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).expect("a message is far below 4 GiB")
}
