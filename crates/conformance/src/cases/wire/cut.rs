//! Client that disconnects in the middle of a call. The client writes raw HTTP/2 frames, because a dropped gRPC client
//! would reset its stream.

use std::{io, time::Duration};

use prost::Message as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    time::timeout,
};

use crate::{
    case::{CheckError, failed},
    clients::allocate_request,
};

/// HTTP/2 connection preface (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Frame types (RFC 9113, 6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;

const END_HEADERS: u8 = 4;

/// Flag of the response to a ping.
const ACK: u8 = 1;

/// Size of a frame header in bytes: length, type, flags and stream.
const HEADER_SIZE: usize = 9;

/// Begins a call, waits until the server has read its headers, sends half of the message, and disconnects.
pub(super) async fn call_and_disconnect(
    mut stream: UnixStream,
    (path, limit): (&str, Duration),
) -> Result<(), CheckError> {
    let message = allocate_request(&[vec!["a device".to_owned()]]).encode_to_vec();
    // Prefix of a gRPC message: not compressed, and its length.
    let mut body = vec![0];
    body.extend(u32::try_from(message.len()).unwrap_or_default().to_be_bytes());
    body.extend(message);
    let unfinished_call = [
        PREFACE,
        &frame((SETTINGS, 0), 0, &[]),
        &frame((HEADERS, END_HEADERS), 1, &headers(path)),
        &frame((PING, 0), 0, &[0; 8]),
    ];
    let call = async {
        stream.write_all(&unfinished_call.concat()).await?;
        wait_for_pong(&mut stream).await?;
        let data = frame((DATA, 0), 1, &body);
        stream.write_all(&data[..HEADER_SIZE + body.len() / 2]).await
    };
    match timeout(limit, call).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => {
            failed(format!("the plugin closed the connection before the client did: {error}"))
        }
        Err(_) => failed(format!("no answer to an HTTP/2 ping within {limit:?}")),
    }
}

/// Waits for the response to a ping. Frames are read in order, so the server has read the headers before it.
async fn wait_for_pong(stream: &mut UnixStream) -> io::Result<()> {
    loop {
        let mut header = [0; HEADER_SIZE];
        stream.read_exact(&mut header).await?;
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap_or_default()];
        stream.read_exact(&mut payload).await?;
        if header[3] == PING && header[4] & ACK != 0 {
            return Ok(());
        }
    }
}

fn frame((kind, flags): (u8, u8), stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, length @ ..] = u32::try_from(payload.len()).unwrap_or_default().to_be_bytes();
    let mut frame = length.to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Headers of a call (RFC 7541): names by index of the static table, values as literals.
fn headers(path: &str) -> Vec<u8> {
    // `:method: POST` and `:scheme: http`.
    let mut block = vec![0x83, 0x86];
    // `:path`, `:authority`, and `content-type`, whose index takes two bytes.
    for (name, value) in
        [(&[4][..], path), (&[1], "localhost"), (&[0x0f, 0x10], "application/grpc")]
    {
        block.extend(name);
        block.extend(hpack_string(value));
    }
    block.push(0);
    block.extend(hpack_string("te"));
    block.extend(hpack_string("trailers"));
    block
}

fn hpack_string(text: &str) -> Vec<u8> {
    let length = u8::try_from(text.len()).unwrap_or_default();
    std::iter::once(length).chain(text.bytes()).collect()
}
