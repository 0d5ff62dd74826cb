//! Wiring of a stage: its tasks, the channels between them, and the order in which they end.

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
    exit::{EndSender, EndSubscriber},
    inlet::Inlet,
    join::{Join, Table},
    listener::Listener,
    metrics::StageMetrics,
    outlet::Outlet,
    panics::propagate_panic,
    queue::Queue,
    reader::ItemSink,
    settings::{Identity, Settings},
    wire::{DescribeResponse, MESSAGE_OVERHEAD, PROTOCOL, stage_server::StageServer},
    worker::{BatchContext, Destination},
};

/// The tasks of a stage, and the tokens of its life cycle.
pub(crate) struct Tasks {
    /// Tasks that items pass through: join, queue, publisher, outlets.
    workers: JoinSet<()>,
    pub(crate) server: JoinSet<Result<(), Error>>,
    readers: TaskTracker,
    draining: CancellationToken,
    /// Cancelled when all readers have ended.
    readers_ended: CancellationToken,
    /// Cancels the connections when the stage is dropped.
    _guard: DropGuard,
}

/// Context of all tasks.
#[derive(Clone)]
struct TaskContext {
    identity: Identity,
    settings: Settings,
    metrics: StageMetrics,
}

// === impl Tasks ===

impl Tasks {
    /// Starts all tasks. Dropping the stage cancels `disconnect`, and so the listener's connections.
    pub(crate) fn start(
        builder: Builder,
        listener: Listener,
        address: &Address,
        disconnect: CancellationToken,
    ) -> Self {
        let Builder { name, replica, next, previous, work, settings, metrics, .. } = builder;
        let replica = replica.unwrap_or_else(|| address.to_string());
        let identity = Identity { stage: name.as_str().into(), replica: replica.as_str().into() };
        let task_context = TaskContext { identity, settings, metrics };
        let (draining, readers_ended) = (CancellationToken::new(), CancellationToken::new());
        let (mut workers, readers) = (JoinSet::new(), TaskTracker::new());

        let (copies, joins) = (next.len().max(1), previous.len() > 1);
        let max_payload = task_context.settings.max_payload;
        let description = DescribeResponse {
            protocol: PROTOCOL,
            stage: name,
            replica,
            max_payload: max_payload as u64,
            joins,
        };
        let (destination, subscriber) = destination(&mut workers, next, &task_context, &draining);
        let TaskContext { identity, settings, metrics } = task_context.clone();
        let context = BatchContext { identity, settings, work, destination, metrics };
        let sink = if joins {
            join(&mut workers, previous, context, task_context, &readers_ended)
        } else {
            queue(&mut workers, context, &task_context, &readers_ended)
        };
        let inlet = Inlet {
            description,
            copies,
            sink,
            subscriber,
            readers: readers.clone(),
            draining: draining.clone(),
            disconnect: disconnect.clone(),
        };
        let mut server = JoinSet::new();
        let shutdown = draining.clone().cancelled_owned();
        server.spawn(service(inlet, max_payload).serve_with_incoming_shutdown(listener, shutdown));
        Self { workers, server, readers, draining, readers_ended, _guard: disconnect.drop_guard() }
    }

    /// Waits for a failure of the server. Resumes the panic of a task.
    pub(crate) async fn failure(&mut self) -> Error {
        loop {
            tokio::select! {
                Some(result) = self.workers.join_next() => propagate_panic(result),
                Some(result) = self.server.join_next() => match result {
                    Ok(Err(error)) => return error,
                    result => propagate_panic(result.map(drop)),
                },
                else => std::future::pending().await,
            }
        }
    }

    /// Stops accepting items, and returns when all items are passed.
    pub(crate) async fn drain(&mut self) {
        self.draining.cancel();
        self.readers.close();
        self.readers.wait().await;
        self.readers_ended.cancel();
        while let Some(result) = self.workers.join_next().await {
            propagate_panic(result);
        }
        while self.server.join_next().await.is_some() {}
    }
}

/// Starts the outlets, or the publisher of a last stage with its subscriptions.
fn destination(
    workers: &mut JoinSet<()>,
    next: Vec<(String, Addresses)>,
    task_context: &TaskContext,
    draining: &CancellationToken,
) -> (Destination, Option<EndSubscriber>) {
    if next.is_empty() {
        let (ends, publisher, subscriber) = EndSender::new();
        workers.spawn(publisher.run());
        return (Destination::End(ends), Some(subscriber));
    }
    let outlets = next.into_iter().map(|(next, addresses)| {
        let TaskContext { identity, settings, metrics } = task_context.clone();
        let (outlet, task) =
            Outlet::new(identity, &next, addresses, settings, metrics, draining.clone());
        workers.spawn(Box::pin(task.run()));
        outlet
    });
    (Destination::Next(outlets.collect()), None)
}

/// Starts the queue, which ends after the readers.
fn queue(
    workers: &mut JoinSet<()>,
    context: BatchContext,
    task_context: &TaskContext,
    readers_ended: &CancellationToken,
) -> ItemSink {
    let (arrivals, receiver) = mpsc::unbounded_channel();
    workers.spawn(Queue::new(receiver, context).run(readers_ended.clone().cancelled_owned()));
    ItemSink::Queue {
        queue_slots: Arc::new(Semaphore::new(task_context.settings.queue_capacity())),
        arrivals,
    }
}

/// Starts the join, which ends after the readers, and the queue, which ends after the join.
fn join(
    workers: &mut JoinSet<()>,
    from: Vec<String>,
    context: BatchContext,
    task_context: TaskContext,
    readers_ended: &CancellationToken,
) -> ItemSink {
    let (arrivals, receiver) = mpsc::unbounded_channel();
    workers.spawn(Queue::new(receiver, context).run(std::future::pending()));
    let (part_sender, parts) = mpsc::channel(1);
    let TaskContext { identity, settings, metrics } = task_context;
    let queue_slots = Arc::new(Semaphore::new(settings.queue_capacity()));
    let table = Table::default();
    let join = Join {
        previous_stages: from,
        identity,
        settings,
        metrics,
        parts,
        queue_slots,
        arrivals,
        table,
    };
    workers.spawn(Box::pin(join.run(readers_ended.clone().cancelled_owned())));
    ItemSink::Join(part_sender)
}

fn service(inlet: Inlet, max_payload: usize) -> Router {
    let service = StageServer::new(inlet)
        .max_decoding_message_size(max_payload.saturating_add(MESSAGE_OVERHEAD))
        .max_encoding_message_size(usize::MAX);
    Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(STREAM_WINDOW * 2)
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE))
        .add_service(service)
}
