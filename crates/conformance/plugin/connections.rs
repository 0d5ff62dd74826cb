//! Accepted connections of the test plugin. Two defects inspect the received bytes and exit.

use std::collections::BTreeSet;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{UnixListener, UnixStream},
    sync::mpsc,
};
use windlass_kubelet_api::server::Connection;

use crate::defect::Defect;

/// Number of connections that the defect `few-connections` accepts.
const MAX_CONNECTIONS: usize = 20;

/// gRPC prefix of an uncompressed message of 5 MiB: flag and length.
const LARGE_PREFIX: [u8; 5] = [0, 0, 0x50, 0, 0];

/// Bytes of an invalid message.
const INVALID_MESSAGE: [u8; 32] = [0xff; 32];

/// HTTP/2 connection preface, and the size of a frame header in bytes.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADER_SIZE: usize = 9;

/// Accepts connections, and sends them to the server until it stops.
pub(crate) async fn accept(
    listener: UnixListener,
    sender: mpsc::Sender<Result<Connection, std::io::Error>>,
    defect: Defect,
) {
    let mut accepted = 0;
    while let Ok((stream, _)) = listener.accept().await {
        accepted += 1;
        if defect == Defect::FewConnections && accepted > MAX_CONNECTIONS {
            std::future::pending::<()>().await;
        }
        let is_inspected =
            [Defect::ExitsOnInvalidMessages, Defect::ExitsOnCutCalls].contains(&defect);
        let stream = if is_inspected { inspect(stream, defect) } else { Ok(stream) };
        let connection = stream.map(|stream| Connection::new(stream, std::future::pending()));
        if sender.send(connection).await.is_err() {
            return;
        }
    }
}

/// Forwards a connection through a socket pair, and inspects the received bytes.
fn inspect(stream: UnixStream, defect: Defect) -> Result<UnixStream, std::io::Error> {
    let (inner, outer) = UnixStream::pair()?;
    tokio::spawn(async move {
        let (mut from_client, mut to_client) = stream.into_split();
        let (mut from_server, mut to_server) = outer.into_split();
        let requests = async {
            let (mut is_first, mut buffer) = (true, vec![0; 64 * 1024]);
            let mut received = Vec::new();
            while let Ok(count @ 1..) = from_client.read(&mut buffer).await {
                let bytes = &buffer[..count];
                let is_garbage = is_first && !bytes.starts_with(b"PRI")
                    || bytes.windows(LARGE_PREFIX.len()).any(|window| window == LARGE_PREFIX)
                    || bytes.windows(INVALID_MESSAGE.len()).any(|window| window == INVALID_MESSAGE);
                is_first = false;
                received.extend_from_slice(bytes);
                if is_garbage && defect == Defect::ExitsOnInvalidMessages {
                    std::process::exit(1);
                }
                if to_server.write_all(bytes).await.is_err() {
                    return;
                }
            }
            if defect == Defect::ExitsOnCutCalls && is_unfinished(&received) {
                std::process::exit(1);
            }
        };
        let responses = tokio::io::copy(&mut from_server, &mut to_client);
        tokio::select! { () = requests => {}, _ = responses => {} }
    });
    Ok(inner)
}

/// True if a client has started a request and neither finished nor reset it.
fn is_unfinished(sent: &[u8]) -> bool {
    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const RST_STREAM: u8 = 3;
    const END_STREAM: u8 = 1;
    let mut open_streams = BTreeSet::new();
    let mut frames = sent.strip_prefix(PREFACE).unwrap_or_default();
    while let Some((header, payload_and_rest)) = frames.split_at_checked(HEADER_SIZE) {
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
        let stream = &header[5..];
        let ends_stream = header[4] & END_STREAM != 0;
        let payload_size = usize::try_from(length).unwrap_or(usize::MAX);
        let Some(next_frames) = payload_and_rest.get(payload_size..) else { break };
        match header[3] {
            HEADERS if !ends_stream => {
                open_streams.insert(stream);
            }
            DATA if ends_stream => {
                open_streams.remove(stream);
            }
            RST_STREAM => {
                open_streams.remove(stream);
            }
            _ => {}
        }
        frames = next_frames;
    }
    !open_streams.is_empty()
}
