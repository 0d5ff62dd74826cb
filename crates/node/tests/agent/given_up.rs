//! Calls that a caller gives up before the agent has looked at them, as many at once as the wire lets through.

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    time::timeout,
};

use crate::world::{LIMIT, World};

/// More than h2 allows by itself (20), and fewer than one connection may have open (200).
const CALLS: u32 = 100;

/// Types of frames (RFC 9113, section 6), and the flags of headers that end and of answers.
const HEADERS: u8 = 0x1;
const RST_STREAM: u8 = 0x3;
const SETTINGS: u8 = 0x4;
const PING: u8 = 0x6;
const GOAWAY: u8 = 0x7;
const END_HEADERS: u8 = 0x4;
const ACK: u8 = 0x1;

/// `CANCEL` (section 7).
const CANCEL: u32 = 0x8;

fn frame((kind, flags): (u8, u8), stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A header without Huffman coding and without an index for its value (RFC 7541, section 6.2.2).
fn literal(name: &[u8], value: &str) -> Vec<u8> {
    let length = u8::try_from(value.len()).expect("short");
    [name, &[length], value.as_bytes()].concat()
}

/// The headers of an Allocate; the numbers are those of the static table (RFC 7541, appendix A).
fn allocate() -> Vec<u8> {
    let (post, http) = (0x83, 0x86);
    let path = literal(&[0x04], "/v1beta1.DevicePlugin/Allocate");
    let authority = literal(&[0x01], "localhost");
    let content = literal(&[0x0f, 0x10], "application/grpc");
    [&[post, http], &*path, &authority, &content].concat()
}

/// Type and flags of the next frame, whatever is in it.
async fn next_frame(stream: &mut UnixStream) -> (u8, u8) {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.expect("the connection stays");
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let mut payload = vec![0; length as usize];
    stream.read_exact(&mut payload).await.expect("the rest of a frame");
    (head[3], head[4])
}

#[tokio::test]
async fn calls_that_are_given_up_at_once_do_not_cost_the_connection() {
    let world = World::new("dgx-h100");
    let (_kubelet, agent) = world.serving(8).await;
    let mut stream = UnixStream::connect(world.socket()).await.expect("connected");
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame((SETTINGS, 0), 0, &[]));
    for id in (1..).step_by(2).take(CALLS as usize) {
        bytes.extend(frame((HEADERS, END_HEADERS), id, &allocate()));
        bytes.extend(frame((RST_STREAM, 0), id, &CANCEL.to_be_bytes()));
    }
    bytes.extend(frame((PING, 0), 0, b"are you?"));
    stream.write_all(&bytes).await.expect("written");
    let answered = async {
        loop {
            match next_frame(&mut stream).await {
                (PING, ACK) => break,
                (kind, _) => assert_ne!(kind, GOAWAY, "the device list is on this connection, too"),
            }
        }
    };
    timeout(LIMIT, answered).await.expect("a ping is answered");
    agent.stop().await;
}
