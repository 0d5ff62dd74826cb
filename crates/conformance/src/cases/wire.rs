//! W: gRPC robustness: unknown calls, invalid messages, invalid HTTP/2, cut and silent connections.

mod cut;

use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    time::timeout,
};
use tonic::{
    Code, Request, Status,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::http::uri::PathAndQuery,
};
use windlass_kubelet_api::deviceplugin as wire;

use crate::{
    case::{Case, CheckError, CheckResult, failed},
    clients::{allocate_request, call_ok_within},
    testbed::{ServedResource, Testbed, dial},
};

/// Number of silent connections.
const SILENT_CONNECTIONS: usize = 50;

/// Size of a message in bytes, above gRPC's default limit of 4 MiB.
const LARGE_MESSAGE_BYTES: usize = 5 * 1024 * 1024;

pub(super) const CASES: &[Case] = &[
    Case {
        id: "W01",
        sentence: "returns the same options to each call",
        source: "cm/devicemanager/plugin/v1beta1/handler.go: called at each registration",
        check: |testbed| Box::pin(options_are_the_same(testbed)),
    },
    Case {
        id: "W02",
        sentence: "answers an unknown call with Unimplemented",
        source: "gRPC status codes; newer kubelets may make calls that older plugins lack",
        check: |testbed| Box::pin(unknown_calls_are_unimplemented(testbed)),
    },
    Case {
        id: "W03",
        sentence: "survives a message that is not protobuf",
        source: "gRPC over HTTP/2: length-prefixed messages",
        check: |testbed| Box::pin(survives_invalid_input(testbed, InvalidInput::InvalidMessage)),
    },
    Case {
        id: "W04",
        sentence: "survives bytes that are not HTTP/2",
        source: "RFC 9113, 3.4: connection preface",
        check: |testbed| Box::pin(survives_invalid_input(testbed, InvalidInput::InvalidHttp2)),
    },
    Case {
        id: "W05",
        sentence: "survives a message of 5 MiB",
        source: "google.golang.org/grpc, defaultServerMaxReceiveMessageSize: 4 MiB",
        check: |testbed| Box::pin(survives_invalid_input(testbed, InvalidInput::LargeMessage)),
    },
    Case {
        id: "W06",
        sentence: "serves while fifty other clients are connected and silent",
        source: "unix(7): each process with access to the folder may connect",
        check: |testbed| Box::pin(survives_invalid_input(testbed, InvalidInput::SilentConnections)),
    },
    Case {
        id: "W07",
        sentence: "survives a connection that is cut in the middle of a call",
        source: "a kubelet killed during a call",
        check: |testbed| Box::pin(survives_invalid_input(testbed, InvalidInput::CutCall)),
    },
];

/// Invalid input for a plugin.
#[derive(Clone, Copy, Debug)]
enum InvalidInput {
    InvalidMessage,
    InvalidHttp2,
    LargeMessage,
    SilentConnections,
    CutCall,
}

/// Codec that passes messages as bytes.
#[derive(Clone, Copy, Debug, Default)]
struct BytesCodec;

async fn options_are_the_same(testbed: &mut Testbed) -> CheckResult {
    let (resources, limit) = (testbed.start_and_wait().await?, testbed.subject.limits.answer);
    for served in &resources {
        let mut client = served.dial().await?;
        let mut request = Request::new(wire::Empty {});
        request.set_timeout(limit);
        let call = client.get_device_plugin_options(request);
        let options = call_ok_within("GetDevicePluginOptions", limit, call).await?;
        let registered = served.options;
        if options.pre_start_required != registered.pre_start_required
            || options.get_preferred_allocation_available
                != registered.get_preferred_allocation_available
        {
            return failed(format!("{}: {registered:?}, then {options:?}", served.resource));
        }
    }
    Ok(format!("{} resources", resources.len()))
}

async fn unknown_calls_are_unimplemented(testbed: &mut Testbed) -> CheckResult {
    let (resources, limit) = (testbed.start_and_wait().await?, testbed.subject.limits.answer);
    for served in &resources {
        let call = call_raw(served, "/v1beta1.DevicePlugin/NoSuchCall", Bytes::new());
        let Ok(result) = timeout(limit, call).await else {
            return failed(format!("no answer within {limit:?}"));
        };
        match result? {
            Err(status) if status.code() == Code::Unimplemented => {}
            Err(status) => return failed(format!("{:?}: {}", status.code(), status.message())),
            Ok(_) => return failed("answered"),
        }
    }
    testbed.check_alive()?;
    Ok("Unimplemented".to_owned())
}

async fn survives_invalid_input(testbed: &mut Testbed, input: InvalidInput) -> CheckResult {
    let (resources, limit) = (testbed.start_with_devices().await?, testbed.subject.limits.answer);
    for served in &resources {
        let open_connections = send(served, input, limit).await?;
        let request = allocate_request(&[vec![served.healthy_ids()[0].clone()]]);
        let call = async {
            served.dial().await?.allocate(request).await.map_err(|status| allocate_failure(&status))
        };
        match timeout(limit, call).await {
            Ok(Ok(_)) => drop(open_connections),
            Ok(Err(error)) => return Err(error),
            Err(_) => return failed(format!("{}: no answer within {limit:?}", served.resource)),
        }
    }
    testbed.check_alive()?;
    Ok(format!("{} resources answer afterwards", resources.len()))
}

/// Sends invalid input. Returns the connections that stay open during the next call.
async fn send(
    served: &ServedResource,
    input: InvalidInput,
    limit: Duration,
) -> Result<Vec<UnixStream>, CheckError> {
    const ALLOCATE: &str = "/v1beta1.DevicePlugin/Allocate";
    match input {
        // Any response passes.
        InvalidInput::InvalidMessage => {
            drop(timeout(limit, call_raw(served, ALLOCATE, Bytes::from_static(&[0xff; 64]))).await);
        }
        InvalidInput::LargeMessage => drop(
            timeout(limit, call_raw(served, ALLOCATE, vec![0; LARGE_MESSAGE_BYTES].into())).await,
        ),
        InvalidInput::CutCall => {
            cut::call_and_disconnect(connect(served).await?, (ALLOCATE, limit)).await?;
        }
        InvalidInput::InvalidHttp2 => {
            let mut stream = connect(served).await?;
            // The plugin may respond or close before the write ends.
            let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n\0\xff\xfe").await;
            let _ = timeout(Duration::from_millis(200), stream.read(&mut [0; 64])).await;
        }
        InvalidInput::SilentConnections => {
            let mut connections = Vec::new();
            for _ in 0..SILENT_CONNECTIONS {
                connections.push(connect(served).await?);
            }
            return Ok(connections);
        }
    }
    Ok(Vec::new())
}

async fn connect(served: &ServedResource) -> Result<UnixStream, CheckError> {
    let stream = UnixStream::connect(&served.socket).await;
    stream.map_err(|error| CheckError::Failed(format!("{}: {error}", served.socket.display())))
}

/// Calls with these bytes as the message.
async fn call_raw(
    served: &ServedResource,
    path: &'static str,
    message: Bytes,
) -> Result<Result<Bytes, Status>, CheckError> {
    let channel = dial(&served.socket).await.map_err(CheckError::Failed)?;
    let mut grpc = Grpc::new(channel);
    if let Err(error) = grpc.ready().await {
        return failed(format!("{}: {error}", served.resource));
    }
    let result =
        grpc.unary(Request::new(message), PathAndQuery::from_static(path), BytesCodec).await;
    Ok(result.map(tonic::Response::into_inner))
}

fn allocate_failure(status: &Status) -> CheckError {
    CheckError::Failed(format!(
        "a valid Allocate afterwards: {:?}: {}",
        status.code(),
        status.message()
    ))
}

// === impl BytesCodec ===

impl Codec for BytesCodec {
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

impl Encoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let length = buffer.remaining();
        Ok(Some(buffer.copy_to_bytes(length)))
    }
}
