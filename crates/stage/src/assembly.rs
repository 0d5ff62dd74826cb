//! Wires a stage: its tasks, the channels between them, and the order in which they end.

use std::sync::Arc;

use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinSet,
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};
use tonic::transport::{Error, Server, server::Router};

use crate::{
    address::{Address, Addresses},
    builder::Builder,
    dial::{KEEP_ALIVE, STREAM_WINDOW},
    exit::{Exit, Listeners},
    inlet::Inlet,
    join::{Join, Table},
    listener::Listener,
    metrics::StageMetrics,
    outlet::Outlet,
    panics::carry_on,
    queue::Queue,
    reader::Entrance,
    settings::{Identity, Settings},
    wire::{DescribeResponse, PROTOCOL, SLACK, stage_server::StageServer},
    worker::{WayOut, Workshop},
};

/// The tasks of a stage, and the tokens that move it on.
pub(crate) struct Tasks {
    /// Items' way: join, queue, teller, outlets.
    way: JoinSet<()>,
    pub(crate) server: JoinSet<Result<(), Error>>,
    readers: TaskTracker,
    closing: CancellationToken,
    /// Cancelled when all readers have ended.
    finishing: CancellationToken,
    /// Cuts all connections, also where the stage is dropped.
    _gone: DropGuard,
}

/// Facts that most tasks need.
#[derive(Clone)]
struct Shared {
    identity: Identity,
    settings: Settings,
    metrics: StageMetrics,
}

// === impl Tasks ===

impl Tasks {
    /// Starts every task. `gone` cuts the listener's connections.
    pub(crate) fn start(
        builder: Builder,
        listener: Listener,
        address: &Address,
        gone: CancellationToken,
    ) -> Self {
        let Builder { name, replica, next, from, work, settings, metrics, .. } = builder;
        let replica = replica.unwrap_or_else(|| address.to_string());
        let identity = Identity { stage: name.as_str().into(), replica: replica.as_str().into() };
        let shared = Shared { identity, settings, metrics };
        let (closing, finishing) = (CancellationToken::new(), CancellationToken::new());
        let (mut way, readers) = (JoinSet::new(), TaskTracker::new());

        let (copies, joins) = (next.len().max(1), from.len() > 1);
        let max_payload = shared.settings.max_payload;
        let description = DescribeResponse {
            protocol: PROTOCOL,
            stage: name,
            replica,
            max_payload: max_payload as u64,
            joins,
        };
        let (way_out, listeners) = way_out(&mut way, next, &shared, &closing);
        let Shared { identity, settings, metrics } = shared.clone();
        let workshop = Workshop { identity, settings, work, way_out, metrics };
        let entrance = if joins {
            join(&mut way, from, workshop, shared, &finishing)
        } else {
            queue(&mut way, workshop, &shared, &finishing)
        };
        let inlet = Inlet {
            description,
            copies,
            entrance,
            listeners,
            readers: readers.clone(),
            closing: closing.clone(),
            gone: gone.clone(),
        };
        let mut server = JoinSet::new();
        let shutdown = closing.clone().cancelled_owned();
        server.spawn(service(inlet, max_payload).serve_with_incoming_shutdown(listener, shutdown));
        Self { way, server, readers, closing, finishing, _gone: gone.drop_guard() }
    }

    /// Waits for the server's failure. A panic of a task goes on here.
    pub(crate) async fn failure(&mut self) -> Error {
        loop {
            tokio::select! {
                Some(ended) = self.way.join_next() => carry_on(ended),
                Some(ended) = self.server.join_next() => match ended {
                    Ok(Err(error)) => return error,
                    ended => carry_on(ended.map(drop)),
                },
                else => std::future::pending().await,
            }
        }
    }

    /// Takes no more, and ends when everything was passed on.
    pub(crate) async fn drain(&mut self) {
        self.closing.cancel();
        self.readers.close();
        self.readers.wait().await;
        self.finishing.cancel();
        while let Some(ended) = self.way.join_next().await {
            carry_on(ended);
        }
        while self.server.join_next().await.is_some() {}
    }
}

/// The way to the next stages, or to the listeners; those where no stage follows.
fn way_out(
    way: &mut JoinSet<()>,
    next: Vec<(String, Addresses)>,
    shared: &Shared,
    closing: &CancellationToken,
) -> (WayOut, Option<Listeners>) {
    if next.is_empty() {
        let (exit, teller, listeners) = Exit::new();
        way.spawn(teller.run());
        return (WayOut::End(exit), Some(listeners));
    }
    let outlets = next.into_iter().map(|(next, addresses)| {
        let Shared { identity, settings, metrics } = shared.clone();
        let (outlet, carrier) =
            Outlet::new(identity, &next, addresses, settings, metrics, closing.clone());
        way.spawn(Box::pin(carrier.run()));
        outlet
    });
    (WayOut::Next(outlets.collect()), None)
}

/// The queue, which ends after the readers.
fn queue(
    way: &mut JoinSet<()>,
    workshop: Workshop,
    shared: &Shared,
    finishing: &CancellationToken,
) -> Entrance {
    let (arrivals, arriving) = mpsc::unbounded_channel();
    way.spawn(Queue::new(arriving, workshop).run(finishing.clone().cancelled_owned()));
    Entrance::Queue { room: Arc::new(Semaphore::new(shared.settings.room())), arrivals }
}

/// The join, which ends after the readers, and the queue, which ends after the join.
fn join(
    way: &mut JoinSet<()>,
    from: Vec<String>,
    workshop: Workshop,
    shared: Shared,
    finishing: &CancellationToken,
) -> Entrance {
    let (arrivals, arriving) = mpsc::unbounded_channel();
    way.spawn(Queue::new(arriving, workshop).run(std::future::pending()));
    let (sender, parts) = mpsc::channel(1);
    let Shared { identity, settings, metrics } = shared;
    let room = Arc::new(Semaphore::new(settings.room()));
    let table = Table::default();
    let join = Join { from, identity, settings, metrics, parts, room, arrivals, table };
    way.spawn(Box::pin(join.run(finishing.clone().cancelled_owned())));
    Entrance::Join(sender)
}

fn service(inlet: Inlet, max_payload: usize) -> Router {
    let service = StageServer::new(inlet)
        .max_decoding_message_size(max_payload.saturating_add(SLACK))
        .max_encoding_message_size(usize::MAX);
    Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(STREAM_WINDOW * 2)
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE))
        .add_service(service)
}
