//! HTTP/2 client that cancels gRPC calls before the server has handled them.

use std::path::Path;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
};

use crate::wait::within_timeout;

/// HTTP/2 connection to a gRPC server.
#[derive(Debug)]
pub struct Caller {
    stream: UnixStream,
    /// Stream id of the next call.
    next: u32,
}

/// Frame types (RFC 9113, section 6) and their flags.
const DATA: u8 = 0x0;
const HEADERS: u8 = 0x1;
const RST_STREAM: u8 = 0x3;
const SETTINGS: u8 = 0x4;
const GOAWAY: u8 = 0x7;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;

/// Error code `CANCEL` (RFC 9113, section 7).
const CANCEL: [u8; 4] = [0, 0, 0, 8];

/// Empty gRPC message: compression flag (1 byte) and length (4 bytes).
const EMPTY_MESSAGE: [u8; 5] = [0; 5];

fn frame((kind, flags): (u8, u8), stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Encodes a header field without Huffman coding and without indexing (RFC 7541, section 6.2.2).
fn literal(name: &[u8], value: &str) -> Vec<u8> {
    let length = u8::try_from(value.len()).expect("short");
    [name, &[length], value.as_bytes()].concat()
}

/// Encodes the headers of a call. The numbers are indexes of the static table (RFC 7541, appendix A).
fn headers(path: &str) -> Vec<u8> {
    let (post, http) = (0x83, 0x86);
    let path = literal(&[0x04], path);
    let authority = literal(&[0x01], "localhost");
    let content = literal(&[0x0f, 0x10], "application/grpc");
    [&[post, http], &*path, &authority, &content].concat()
}

// === impl Caller ===

impl Caller {
    /// Connects and sends the HTTP/2 preface.
    pub async fn connect(socket: &Path) -> Self {
        let mut stream = UnixStream::connect(socket).await.expect("connected");
        let magic = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        let preface = [&magic[..], &frame((SETTINGS, 0), 0, &[])].concat();
        stream.write_all(&preface).await.expect("written");
        Self { stream, next: 1 }
    }

    fn next_stream(&mut self) -> u32 {
        self.next += 2;
        self.next - 2
    }

    /// Sends this number of calls, and cancels each at once. Other tasks of the thread run only while the socket is
    /// full, so a server on this thread reads each call together with its cancellation.
    pub async fn send_cancelled_calls(&mut self, path: &str, calls: usize) {
        let mut bytes = Vec::new();
        for _ in 0..calls {
            let stream = self.next_stream();
            bytes.extend(frame((HEADERS, END_HEADERS), stream, &headers(path)));
            bytes.extend(frame((RST_STREAM, 0), stream, &CANCEL));
        }
        let mut unsent = &*bytes;
        while !unsent.is_empty() {
            self.stream.writable().await.expect("an open connection");
            while let Ok(count @ 1..) = self.stream.try_write(unsent) {
                unsent = &unsent[count..];
            }
        }
    }

    /// Makes a call with an empty message, and waits for its response.
    pub async fn call(&mut self, path: &str) {
        let stream = self.next_stream();
        let message = frame((DATA, END_STREAM), stream, &EMPTY_MESSAGE);
        let bytes = [frame((HEADERS, END_HEADERS), stream, &headers(path)), message].concat();
        self.stream.write_all(&bytes).await.expect("an open connection");
        within_timeout("the response headers", self.response_headers(stream)).await;
    }

    /// Reads frames up to the headers of this stream. Panics if the server closes the connection with GOAWAY.
    async fn response_headers(&mut self, stream: u32) {
        loop {
            let mut head = [0; 9];
            self.stream.read_exact(&mut head).await.expect("an open connection");
            let [a, b, c, kind, _flags, id @ ..] = head;
            let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
            self.stream.read_exact(&mut payload).await.expect("the payload of a frame");
            assert_ne!(kind, GOAWAY, "{}", String::from_utf8_lossy(&payload));
            if (kind, u32::from_be_bytes(id)) == (HEADERS, stream) {
                return;
            }
        }
    }
}
