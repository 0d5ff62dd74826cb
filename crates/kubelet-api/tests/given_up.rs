//! Calls that the client cancels before the server reads any of them.

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    time::{Duration, timeout},
};
use tonic::{Request, Response, Status, codegen::tokio_stream::once};
use windlass_kubelet_api::{
    deviceplugin::{
        Empty, RegisterRequest,
        registration_server::{Registration, RegistrationServer},
    },
    server::{Connection, server},
};

/// Number of cancelled calls, far above the 20 that h2 tolerates by default.
const CANCELLED_CALLS: usize = 10_000;

/// HTTP/2 frame types and flags (RFC 9113, section 6).
const DATA: u8 = 0x0;
const HEADERS: u8 = 0x1;
const RST_STREAM: u8 = 0x3;
const SETTINGS: u8 = 0x4;
const GOAWAY: u8 = 0x7;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;

/// Error code `CANCEL` (RFC 9113, section 7).
const CANCEL: [u8; 4] = [0, 0, 0, 8];

/// An empty gRPC message: the compressed flag, then a length of 0 in four bytes.
const EMPTY_MESSAGE: [u8; 5] = [0; 5];

struct Registry;

#[tonic::async_trait]
impl Registration for Registry {
    async fn register(&self, _: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        Ok(Response::new(Empty {}))
    }
}

fn frame((kind, flags): (u8, u8), stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("the length fits").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A literal field with incremental indexing (RFC 7541, section 6.2.1). `name` is an index of the static table.
fn indexed_literal(name: u8, value: &str) -> Vec<u8> {
    let length = u8::try_from(value.len()).expect("the length fits");
    [&[0x40 | name, length], value.as_bytes()].concat()
}

/// Header block of a `Register` call. The first call has literal fields; later calls have their dynamic table indices.
fn register(is_first: bool) -> Vec<u8> {
    let (post, http) = (0x83, 0x86);
    if !is_first {
        return vec![post, http, 0xc0, 0xbf, 0xbe];
    }
    let path = indexed_literal(4, "/v1beta1.Registration/Register");
    let authority = indexed_literal(1, "localhost");
    [&[post, http], &*path, &authority, &indexed_literal(31, "application/grpc")].concat()
}

/// Reads frames until the response headers of a call. Panics at `GOAWAY`.
async fn read_response_headers(stream: &mut DuplexStream, call: u32) {
    loop {
        let mut header = [0; 9];
        stream.read_exact(&mut header).await.expect("the connection stays open");
        let [a, b, c, kind, _flags, stream_id @ ..] = header;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        stream.read_exact(&mut payload).await.expect("the payload of a frame");
        assert_ne!(kind, GOAWAY, "{}", String::from_utf8_lossy(&payload));
        if (kind, u32::from_be_bytes(stream_id)) == (HEADERS, call) {
            return;
        }
    }
}

#[tokio::test]
async fn ten_thousand_cancelled_calls_leave_the_connection_open() {
    let (mut client, stream) = duplex(1 << 20);
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame((SETTINGS, 0), 0, &[]));
    let mut calls = (1..).step_by(2);
    for call in calls.by_ref().take(CANCELLED_CALLS) {
        bytes.extend(frame((HEADERS, END_HEADERS), call, &register(call == 1)));
        bytes.extend(frame((RST_STREAM, 0), call, &CANCEL));
    }
    let last = calls.next().expect("the range has no end");
    bytes.extend(frame((HEADERS, END_HEADERS), last, &register(false)));
    bytes.extend(frame((DATA, END_STREAM), last, &EMPTY_MESSAGE));
    // All bytes are in the buffer before the server reads the first one.
    client.write_all(&bytes).await.expect("the bytes fit the buffer");
    let connection = Connection::new(stream, std::future::pending());
    let incoming = once(Ok::<_, std::io::Error>(connection));
    let serving =
        server().add_service(RegistrationServer::new(Registry)).serve_with_incoming(incoming);
    let response = read_response_headers(&mut client, last);
    tokio::select! {
        result = timeout(Duration::from_secs(60), response) => {
            result.expect("the call after the cancelled ones is answered");
        }
        never = async { serving.await.expect("it serves"); std::future::pending().await } => never,
    }
}
