//! Calls that their caller gives up before the server has looked at any of them.

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

/// As many as wait while the server has no processor time.
const GIVEN_UP: usize = 10_000;

/// Types of frames (RFC 9113, section 6), and their flags.
const DATA: u8 = 0x0;
const HEADERS: u8 = 0x1;
const RST_STREAM: u8 = 0x3;
const SETTINGS: u8 = 0x4;
const GOAWAY: u8 = 0x7;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;

/// `CANCEL` (section 7).
const CANCEL: [u8; 4] = [0, 0, 0, 8];

/// A message of no bytes (gRPC over HTTP/2: compressed or not, and the length).
const NOTHING: [u8; 5] = [0; 5];

struct Registry;

#[tonic::async_trait]
impl Registration for Registry {
    async fn register(&self, _: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        Ok(Response::new(Empty {}))
    }
}

fn frame((kind, flags): (u8, u8), stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A header that the table is to keep, by the number of its name (RFC 7541, section 6.2.1).
fn kept(name: u8, value: &str) -> Vec<u8> {
    let length = u8::try_from(value.len()).expect("short");
    [&[0x40 | name, length], value.as_bytes()].concat()
}

/// The headers of a call: the first time whole, then by their numbers in the table.
fn register(is_first: bool) -> Vec<u8> {
    let (post, http) = (0x83, 0x86);
    if !is_first {
        return vec![post, http, 0xc0, 0xbf, 0xbe];
    }
    let (path, authority) = (kept(4, "/v1beta1.Registration/Register"), kept(1, "localhost"));
    [&[post, http], &*path, &authority, &kept(31, "application/grpc")].concat()
}

/// Reads until headers come for a call; an answer that is no call's ends the test.
async fn answered(stream: &mut DuplexStream, call: u32) {
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.expect("the connection stays");
        let [a, b, c, kind, _flags, of @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        stream.read_exact(&mut payload).await.expect("the rest of a frame");
        assert_ne!(kind, GOAWAY, "{}", String::from_utf8_lossy(&payload));
        if (kind, u32::from_be_bytes(of)) == (HEADERS, call) {
            return;
        }
    }
}

#[tokio::test]
async fn ten_thousand_calls_that_are_given_up_at_once_do_not_end_their_connection() {
    let (mut caller, served) = duplex(1 << 20);
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame((SETTINGS, 0), 0, &[]));
    let mut calls = (1..).step_by(2);
    for call in calls.by_ref().take(GIVEN_UP) {
        bytes.extend(frame((HEADERS, END_HEADERS), call, &register(call == 1)));
        bytes.extend(frame((RST_STREAM, 0), call, &CANCEL));
    }
    let last = calls.next().expect("numbers do not end");
    bytes.extend(frame((HEADERS, END_HEADERS), last, &register(false)));
    bytes.extend(frame((DATA, END_STREAM), last, &NOTHING));
    // All of it waits before the server looks for the first time.
    caller.write_all(&bytes).await.expect("it fits");
    let served = once(Ok::<_, std::io::Error>(Connection::new(served, std::future::pending())));
    let serving =
        server().add_service(RegistrationServer::new(Registry)).serve_with_incoming(served);
    tokio::select! {
        ended = timeout(Duration::from_secs(60), answered(&mut caller, last)) => {
            ended.expect("the next call is answered");
        }
        never = async { serving.await.expect("it serves"); std::future::pending().await } => never,
    }
}
