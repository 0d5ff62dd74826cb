//! W: the wire: invalid calls, invalid messages, invalid HTTP/2, and silent connections.

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
    case::{Case, Checked, Unmet, failed},
    clients::{allocation, granted},
    stage::{Served, Stage, dialled},
};

/// Number of silent connections.
const SILENT: usize = 50;

/// Size of a message, in bytes, above gRPC's default limit.
const LARGE: usize = 5 * 1024 * 1024;

pub(super) const CASES: &[Case] = &[
    Case {
        id: "W01",
        sentence: "tells its options again as it told them at first",
        source: "cm/devicemanager/plugin/v1beta1/handler.go: asked at each registration",
        check: |stage| Box::pin(options_are_the_same(stage)),
    },
    Case {
        id: "W02",
        sentence: "answers Unimplemented to a call that it does not know",
        source: "gRPC status codes; newer kubelets may call what older plugins do not have",
        check: |stage| Box::pin(unknown_calls_are_unimplemented(stage)),
    },
    Case {
        id: "W03",
        sentence: "survives a message that is no protobuf",
        source: "gRPC over HTTP/2: length-prefixed messages",
        check: |stage| Box::pin(survives_garbage(stage, Garbage::Message)),
    },
    Case {
        id: "W04",
        sentence: "survives bytes that are no HTTP/2",
        source: "RFC 9113, 3.4: connection preface",
        check: |stage| Box::pin(survives_garbage(stage, Garbage::Bytes)),
    },
    Case {
        id: "W05",
        sentence: "survives a message of 5 MiB",
        source: "google.golang.org/grpc, defaultServerMaxReceiveMessageSize: 4 MiB",
        check: |stage| Box::pin(survives_garbage(stage, Garbage::Large)),
    },
    Case {
        id: "W06",
        sentence: "serves while fifty others are connected and say nothing",
        source: "unix(7): who may open the folder may connect",
        check: |stage| Box::pin(survives_garbage(stage, Garbage::Silence)),
    },
    Case {
        id: "W07",
        sentence: "survives a connection that is cut in the middle of a call",
        source: "a kubelet that is killed",
        check: |stage| Box::pin(survives_garbage(stage, Garbage::Cut)),
    },
];

/// Invalid input for a plugin.
#[derive(Clone, Copy, Debug)]
enum Garbage {
    Message,
    Bytes,
    Large,
    Silence,
    Cut,
}

/// Codec that passes messages as bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Raw;

async fn options_are_the_same(stage: &mut Stage) -> Checked {
    let (all, limit) = (stage.started().await?, stage.subject.within.answer);
    for served in &all {
        let mut client = served.dial().await?;
        let mut request = Request::new(wire::Empty {});
        request.set_timeout(limit);
        let call = client.get_device_plugin_options(request);
        let now = granted("GetDevicePluginOptions", limit, call).await?;
        let (then, preferred) = (served.options, now.get_preferred_allocation_available);
        if now.pre_start_required != then.pre_start_required
            || preferred != then.get_preferred_allocation_available
        {
            return failed(format!("{}: {then:?}, then {now:?}", served.resource));
        }
    }
    Ok(format!("{} resources", all.len()))
}

async fn unknown_calls_are_unimplemented(stage: &mut Stage) -> Checked {
    let (all, limit) = (stage.started().await?, stage.subject.within.answer);
    for served in &all {
        let call = raw(served, "/v1beta1.DevicePlugin/NoSuchCall", Bytes::new());
        let Ok(answer) = timeout(limit, call).await else {
            return failed(format!("no answer within {limit:?}"));
        };
        match answer? {
            Err(status) if status.code() == Code::Unimplemented => {}
            Err(status) => return failed(format!("{:?}: {}", status.code(), status.message())),
            Ok(_) => return failed("answered"),
        }
    }
    stage.alive()?;
    Ok("Unimplemented".to_owned())
}

async fn survives_garbage(stage: &mut Stage, garbage: Garbage) -> Checked {
    let (all, limit) = (stage.started_with_devices().await?, stage.subject.within.answer);
    for served in &all {
        let kept = send(served, garbage, limit).await?;
        let request = allocation(&[vec![served.healthy()[0].clone()]]);
        let call = async {
            served.dial().await?.allocate(request).await.map_err(|status| broken(&status))
        };
        match timeout(limit, call).await {
            Ok(Ok(_)) => drop(kept),
            Ok(Err(unmet)) => return Err(unmet),
            Err(_) => return failed(format!("{}: no answer within {limit:?}", served.resource)),
        }
    }
    stage.alive()?;
    Ok(format!("{} resources answer after it", all.len()))
}

/// Sends invalid input. Returns the connections that must stay open meanwhile.
async fn send(
    served: &Served,
    garbage: Garbage,
    limit: Duration,
) -> Result<Vec<UnixStream>, Unmet> {
    const ALLOCATE: &str = "/v1beta1.DevicePlugin/Allocate";
    match garbage {
        // Any response passes.
        Garbage::Message => {
            drop(timeout(limit, raw(served, ALLOCATE, Bytes::from_static(&[0xff; 64]))).await);
        }
        Garbage::Large => drop(timeout(limit, raw(served, ALLOCATE, vec![0; LARGE].into())).await),
        Garbage::Cut => cut::in_the_middle(connect(served).await?, (ALLOCATE, limit)).await?,
        Garbage::Bytes => {
            let mut stream = connect(served).await?;
            // The plugin may respond or close before the write ends.
            let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n\0\xff\xfe").await;
            let _ = timeout(Duration::from_millis(200), stream.read(&mut [0; 64])).await;
        }
        Garbage::Silence => {
            let mut silent = Vec::new();
            for _ in 0..SILENT {
                silent.push(connect(served).await?);
            }
            return Ok(silent);
        }
    }
    Ok(Vec::new())
}

async fn connect(served: &Served) -> Result<UnixStream, Unmet> {
    let stream = UnixStream::connect(&served.socket).await;
    stream.map_err(|error| Unmet::Failed(format!("{}: {error}", served.socket.display())))
}

/// Calls with these bytes as the message.
async fn raw(
    served: &Served,
    path: &'static str,
    message: Bytes,
) -> Result<Result<Bytes, Status>, Unmet> {
    let channel = dialled(&served.socket).await.map_err(Unmet::Failed)?;
    let mut grpc = Grpc::new(channel);
    if let Err(error) = grpc.ready().await {
        return failed(format!("{}: {error}", served.resource));
    }
    let answer = grpc.unary(Request::new(message), PathAndQuery::from_static(path), Raw).await;
    Ok(answer.map(tonic::Response::into_inner))
}

fn broken(status: &Status) -> Unmet {
    Unmet::Failed(format!("a right Allocate after it: {:?}: {}", status.code(), status.message()))
}

// === impl Raw ===

impl Codec for Raw {
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

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let length = buffer.remaining();
        Ok(Some(buffer.copy_to_bytes(length)))
    }
}
