//! `:authority` of Go clients: the path of the registration socket, which hyper alone does not accept.

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
};
use tonic::codegen::http::{Request, Response};
use windlass_kubelet_sim::{Event, authority::IncomingAuthorityShim};

use super::{
    plugin::Plugin,
    support::{DEADLINE, GPU, Node, devices},
};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Encodes a path in the Huffman code of RFC 7541 appendix B, as Go's encoder does. The table has only
/// the characters of `/var/lib/kubelet/device-plugins/kubelet.sock`.
fn huffman(text: &str) -> Vec<u8> {
    let code = |byte| match byte {
        b'/' => (0x18, 6),
        b'.' => (0x17, 6),
        b'-' => (0x16, 6),
        b'a' => (0x3, 5),
        b'b' => (0x23, 6),
        b'c' => (0x4, 5),
        b'd' => (0x24, 6),
        b'e' => (0x5, 5),
        b'g' => (0x26, 6),
        b'i' => (0x6, 5),
        b'k' => (0x75, 7),
        b'l' => (0x28, 6),
        b'n' => (0x2a, 6),
        b'o' => (0x7, 5),
        b'p' => (0x2b, 6),
        b'r' => (0x2c, 6),
        b's' => (0x8, 5),
        b't' => (0x9, 5),
        b'u' => (0x2d, 6),
        b'v' => (0x77, 7),
        other => panic!("no code for {other}"),
    };
    let mut bits: Vec<bool> = Vec::new();
    for (value, length) in text.bytes().map(code) {
        bits.extend((0..length).rev().map(|position| value >> position & 1 == 1));
    }
    bits.resize(bits.len().div_ceil(8) * 8, true);
    let byte = |bits: &[bool]| bits.iter().fold(0, |byte, bit| byte << 1 | u8::from(*bit));
    bits.chunks(8).map(byte).collect()
}

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short payload").to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
}

/// A literal field with incremental indexing. Its name is an entry of the static table.
fn literal(index: u8, value: &[u8]) -> Vec<u8> {
    let length = u8::try_from(value.len()).expect("at most 255 bytes");
    [&[0x40 | index, length], value].concat()
}

/// A `Register` call as grpc-go writes it. `authority` is the encoded field.
fn register(plugin: &Plugin, authority: &[u8]) -> Vec<u8> {
    let name = |name: &str, value: &[u8]| {
        let length = |bytes: &[u8]| u8::try_from(bytes.len()).expect("at most 255 bytes");
        [&[0x40, length(name.as_bytes())], name.as_bytes(), &[length(value)], value].concat()
    };
    let headers = [
        vec![0x83, 0x86],
        literal(4, b"/v1beta1.Registration/Register"),
        authority.to_vec(),
        literal(31, b"application/grpc"),
        name("te", b"trailers"),
    ]
    .concat();
    let request = plugin.request();
    let field = |tag: u8, text: &str| {
        [&[tag, u8::try_from(text.len()).expect("at most 255 bytes")], text.as_bytes()].concat()
    };
    let message = [
        field(0x0a, &request.version),
        field(0x12, &request.endpoint),
        field(0x1a, &request.resource_name),
    ]
    .concat();
    let length = u32::try_from(message.len()).expect("a short payload").to_be_bytes();
    let body = [&[0][..], &length, &message].concat();
    let call = [frame(1, 0x4, 1, &headers), frame(0, 0x1, 1, &body)].concat();
    [PREFACE, &frame(4, 0, 0, &[]), &call].concat()
}

#[tokio::test]
async fn a_go_client_registers_although_its_authority_is_a_path() {
    let path = "/var/lib/kubelet/device-plugins/kubelet.sock";
    let encoded_path = huffman(path);
    let encoded_length = u8::try_from(encoded_path.len()).expect("at most 255 bytes");
    let plain_length = u8::try_from(path.len()).expect("at most 255 bytes");
    for authority in [
        [&[0x41, 0x80 | encoded_length], &encoded_path[..]].concat(),
        [&[0x41, plain_length], path.as_bytes()].concat(),
        [&[0x11, plain_length], path.as_bytes()].concat(),
    ] {
        let node = Node::start();
        let plugin = Plugin::serve(&node.kubelet, GPU, "gpu.sock");
        plugin.set_devices(devices(1));
        let socket = node.kubelet.config().registration_socket();
        let mut stream = UnixStream::connect(socket).await.expect("connected");
        stream.write_all(&register(&plugin, &authority)).await.expect("sent");
        node.wait_for_counts(GPU, 1, 1).await;
        node.wait_for_event(|event| matches!(event, Event::Registered { .. })).await;
        let outcome = tokio::time::timeout(DEADLINE, read_to_trailers(&mut stream)).await;
        assert!(outcome.expect("in time"), "the call is not reset");
    }
}

/// Reads until the end of the call. True if it ends with trailers, false if the server resets the call or
/// closes the connection (`RST_STREAM`, `GOAWAY`).
async fn read_to_trailers(stream: &mut UnixStream) -> bool {
    loop {
        let mut header = [0; 9];
        stream.read_exact(&mut header).await.expect("a frame");
        let length = header[..3].iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        let mut payload = vec![0; length];
        stream.read_exact(&mut payload).await.expect("the frame's payload");
        let (kind, flags) = (header[3], header[4]);
        match kind {
            3 | 7 => return false,
            1 if flags & 1 == 1 => return true,
            _ => {}
        }
    }
}

/// 200 requests fill the dynamic table several times. So it evicts entries, and the requests still decode.
#[tokio::test]
async fn an_h2_client_sends_many_requests_through_the_shim() {
    const REQUESTS: usize = 200;
    let (client_end, server_end) = tokio::io::duplex(1024);
    let server = async {
        let mut server = h2::server::handshake(IncomingAuthorityShim::new(server_end))
            .await
            .expect("HTTP/2 handshake");
        let mut received = Vec::new();
        while let Some(call) = server.accept().await {
            let (request, mut response_sender) = call.expect("accepted");
            let (parts, _body) = request.into_parts();
            received.push((parts.uri.to_string(), parts.headers["x-number"].clone()));
            response_sender.send_response(Response::new(()), true).expect("answered");
        }
        received
    };
    let client = async {
        let (mut requests, connection) =
            h2::client::handshake(client_end).await.expect("HTTP/2 handshake");
        let send_all = async move {
            for number in 0..REQUESTS {
                requests = requests.ready().await.expect("ready");
                let host =
                    ["var-lib-kubelet.example.com", "short", "another-host.example"][number % 3];
                let request = Request::builder()
                    .uri(format!("http://{host}/path"))
                    .header("x-number", format!("{number}-{}", "padding".repeat(20)))
                    .body(())
                    .expect("valid");
                let (response, mut body) = requests.send_request(request, false).expect("sent");
                body.send_data(bytes::Bytes::from(vec![7; 100]), true).expect("sent");
                response.await.expect("answered");
            }
        };
        tokio::join!(send_all, async { connection.await.expect("closed without error") });
    };
    let both = async { tokio::join!(server, client) };
    let (received, ()) = tokio::time::timeout(DEADLINE, both).await.expect("in time");
    assert_eq!(received.len(), REQUESTS);
    for (number, (uri, header)) in received.into_iter().enumerate() {
        let host = uri.strip_prefix("http://").and_then(|rest| rest.strip_suffix("/path"));
        let host = host.expect("only the host changed");
        assert!(!host.is_empty() && "localhost".starts_with(host), "{uri}");
        assert!(header.to_str().expect("UTF-8 text").starts_with(&format!("{number}-")));
    }
}
