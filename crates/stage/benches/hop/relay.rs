//! A chain of relays: each reads a bidirectional stream and writes what it reads to the next one.

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

/// Relays on threads of their own, which end with this value.
pub(crate) struct Relays {
    first: mpsc::Sender<wire::Parcel>,
    last: mpsc::UnboundedReceiver<wire::Parcel>,
    _answers: Streaming<wire::Receipt>,
    _shutdown: DropGuard,
}

/// The way on.
#[derive(Clone)]
enum Relay {
    Next(mpsc::Sender<wire::Parcel>),
    /// Without a bound: who sends receives too, and would wait for itself.
    End(mpsc::UnboundedSender<wire::Parcel>),
}

/// Messages between a relay and the next stream: as many as a stage's window.
const ROOM: usize = 8;

/// As the kit has it.
const STREAM_WINDOW: u32 = 4 * 1024 * 1024;

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Chain for Relays {
    async fn start(stages: usize) -> Self {
        let shutdown = CancellationToken::new();
        let (end, last) = mpsc::unbounded_channel();
        let mut next = start(Way::End(end), shutdown.clone()).await;
        for _ in 1..stages {
            next = start(Way::Next(next), shutdown.clone()).await;
        }
        let (first, answers) = connect(next).await;
        Self { first, last, _answers: answers, _shutdown: shutdown.drop_guard() }
    }

    async fn send(&mut self, payload: Bytes) {
        let item = wire::Item { payload, from: "bench".to_owned(), ..wire::Item::default() };
        let content = Some(wire::parcel::Content::Item(item));
        self.first.send(wire::Parcel { content }).await.expect("it runs");
    }

    async fn receive(&mut self) {
        self.last.recv().await.expect("it runs");
    }
}

enum Way {
    Next(SocketAddr),
    End(mpsc::UnboundedSender<wire::Parcel>),
}

async fn connect(to: SocketAddr) -> (mpsc::Sender<wire::Parcel>, Streaming<wire::Receipt>) {
    let endpoint = Endpoint::from_shared(format!("http://{to}")).expect("an address");
    let endpoint = endpoint
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(STREAM_WINDOW * 2);
    let channel = endpoint.connect().await.expect("it listens");
    let mut client = wire::stage_client::StageClient::new(channel);
    let (parcels, outgoing) = mpsc::channel(ROOM);
    let answers = client.pass(ReceiverStream::new(outgoing)).await.expect("a stream");
    (parcels, answers.into_inner())
}

/// Relays on a thread of its own.
async fn start(way: Way, shutdown: CancellationToken) -> SocketAddr {
    let (tell, told) = oneshot::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let (relay, _answers) = match way {
                Way::End(end) => (Relay::End(end), None),
                Way::Next(next) => {
                    let (parcels, answers) = connect(next).await;
                    (Relay::Next(parcels), Some(answers))
                }
            };
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            tell.send(listener.local_addr().expect("bound")).expect("somebody waits");
            let incoming = TcpListenerStream::new(listener)
                .map(|stream| stream.inspect(|stream| stream.set_nodelay(true).expect("a socket")));
            let service =
                wire::stage_server::StageServer::new(relay).max_decoding_message_size(usize::MAX);
            let mut serving = JoinSet::new();
            let server = Server::builder()
                .initial_stream_window_size(STREAM_WINDOW)
                .initial_connection_window_size(STREAM_WINDOW * 2);
            let mut server = server;
            serving.spawn(server.add_service(service).serve_with_incoming(incoming));
            shutdown.cancelled().await;
        });
    });
    told.await.expect("it listens")
}

impl Relay {
    /// False if nobody takes it.
    async fn pass(&self, parcel: wire::Parcel) -> bool {
        match self {
            Self::Next(next) => next.send(parcel).await.is_ok(),
            Self::End(end) => end.send(parcel).is_ok(),
        }
    }
}

#[tonic::async_trait]
impl wire::stage_server::Stage for Relay {
    type PassStream = Answers<wire::Receipt>;
    type EndsStream = Answers<wire::End>;

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
        // The task ends with the stream of answers, of which there are none.
        let answers = tokio_stream::pending().map(move |answer| {
            let _ = &reading;
            answer
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn ends(
        &self,
        _: Request<wire::EndsRequest>,
    ) -> Result<Response<Self::EndsStream>, Status> {
        Err(Status::unimplemented("a relay"))
    }
}
