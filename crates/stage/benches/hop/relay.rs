//! A chain of relays: each copies messages from a bidirectional stream to the next one.

use std::{net::SocketAddr, pin::Pin};

use bytes::Bytes;
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot},
    task::JoinSet,
};
use tokio_stream::{
    Stream, StreamExt as _,
    wrappers::{ReceiverStream, TcpListenerStream},
};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::{
    Request, Response, Status, Streaming,
    transport::{Endpoint, Server},
};

use super::Chain;

#[expect(clippy::all, clippy::pedantic, unreachable_pub, reason = "generated")]
mod wire {
    include!("../../src/generated/windlass.stage.v1.rs");
}

/// Relays on their own threads, which end when this value is dropped.
pub(crate) struct Relays {
    sender: mpsc::Sender<wire::Parcel>,
    receiver: mpsc::UnboundedReceiver<wire::Parcel>,
    _receipts: Streaming<wire::Receipt>,
    _shutdown: DropGuard,
}

/// Destination of a relay's messages.
#[derive(Clone)]
enum Relay {
    Next(mpsc::Sender<wire::Parcel>),
    /// Unbounded: the benchmark sends and receives in one task, and a full channel would deadlock.
    End(mpsc::UnboundedSender<wire::Parcel>),
}

/// Messages between a relay and the next stream: the window of a stage.
const CHANNEL_CAPACITY: usize = 8;

/// Flow-control window, as in the crate.
const STREAM_WINDOW: u32 = 4 * 1024 * 1024;

type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Chain for Relays {
    async fn start(stages: usize) -> Self {
        let shutdown = CancellationToken::new();
        let (end, receiver) = mpsc::unbounded_channel();
        let mut next = start(Next::End(end), shutdown.clone()).await;
        for _ in 1..stages {
            next = start(Next::Relay(next), shutdown.clone()).await;
        }
        let (sender, receipts) = connect(next).await;
        Self { sender, receiver, _receipts: receipts, _shutdown: shutdown.drop_guard() }
    }

    async fn send(&mut self, payload: Bytes) {
        let item = wire::Item { payload, from: "bench".to_owned(), ..wire::Item::default() };
        let content = Some(wire::parcel::Content::Item(item));
        self.sender.send(wire::Parcel { content }).await.expect("the relays run");
    }

    async fn receive(&mut self) {
        self.receiver.recv().await.expect("the relays run");
    }
}

/// Address of the next relay, or the end of the chain.
enum Next {
    Relay(SocketAddr),
    End(mpsc::UnboundedSender<wire::Parcel>),
}

async fn connect(address: SocketAddr) -> (mpsc::Sender<wire::Parcel>, Streaming<wire::Receipt>) {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    let endpoint = endpoint
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(STREAM_WINDOW * 2);
    let channel = endpoint.connect().await.expect("it listens");
    let mut client = wire::stage_client::StageClient::new(channel);
    let (parcels, outgoing) = mpsc::channel(CHANNEL_CAPACITY);
    let receipts = client.pass(ReceiverStream::new(outgoing)).await.expect("a stream");
    (parcels, receipts.into_inner())
}

/// Runs a relay on its own thread, and returns its address.
async fn start(next_hop: Next, shutdown: CancellationToken) -> SocketAddr {
    let (sender, receiver) = oneshot::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let (relay, _receipts) = match next_hop {
                Next::End(end) => (Relay::End(end), None),
                Next::Relay(next) => {
                    let (parcels, receipts) = connect(next).await;
                    (Relay::Next(parcels), Some(receipts))
                }
            };
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            sender.send(listener.local_addr().expect("bound")).expect("the caller waits");
            let incoming = TcpListenerStream::new(listener)
                .map(|stream| stream.inspect(|stream| stream.set_nodelay(true).expect("a socket")));
            let service =
                wire::stage_server::StageServer::new(relay).max_decoding_message_size(usize::MAX);
            let mut servers = JoinSet::new();
            let server = Server::builder()
                .initial_stream_window_size(STREAM_WINDOW)
                .initial_connection_window_size(STREAM_WINDOW * 2);
            let mut server = server;
            servers.spawn(server.add_service(service).serve_with_incoming(incoming));
            shutdown.cancelled().await;
        });
    });
    receiver.await.expect("it listens")
}

impl Relay {
    /// Sends a message on. Returns false if the receiver has gone.
    async fn pass(&self, parcel: wire::Parcel) -> bool {
        match self {
            Self::Next(next) => next.send(parcel).await.is_ok(),
            Self::End(end) => end.send(parcel).is_ok(),
        }
    }
}

#[tonic::async_trait]
impl wire::stage_server::Stage for Relay {
    type PassStream = ResponseStream<wire::Receipt>;
    type EndsStream = ResponseStream<wire::End>;

    async fn describe(
        &self,
        _: Request<wire::DescribeRequest>,
    ) -> Result<Response<wire::DescribeResponse>, Status> {
        Err(Status::unimplemented("a relay"))
    }

    async fn pass(
        &self,
        request: Request<Streaming<wire::Parcel>>,
    ) -> Result<Response<Self::PassStream>, Status> {
        let (mut parcels, next) = (request.into_inner(), self.clone());
        let mut reading = JoinSet::new();
        reading.spawn(async move {
            while let Ok(Some(parcel)) = parcels.message().await {
                if !next.pass(parcel).await {
                    return;
                }
            }
        });
        // The empty stream of receipts owns the reading task, which so ends with the stream.
        let receipts = tokio_stream::pending().map(move |answer| {
            let _ = &reading;
            answer
        });
        Ok(Response::new(Box::pin(receipts)))
    }

    async fn ends(
        &self,
        _: Request<wire::EndsRequest>,
    ) -> Result<Response<Self::EndsStream>, Status> {
        Err(Status::unimplemented("a relay"))
    }
}
