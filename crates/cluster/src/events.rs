//! Events: what befalls a device is told on the Node's object.

mod bucket;
mod report;
mod series;

use std::sync::Arc;

use k8s_openapi::api::events::v1::Event;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
    core::Status,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;
use windlass_host::watch::changed;
use windlass_resources::NodeState;

use self::{
    bucket::Bucket,
    report::{Report, Told},
    series::{Series, Write},
};
use super::{Client, ClusterError, MANAGER, attempts::Attempts, client::Connection};

/// Where events about objects without a namespace lie; the API server takes them nowhere else.
const NAMESPACE: &str = "default";

/// Tells changes of devices' health as events of the Node, until stopped.
///
/// # Flow
///
/// What the events have told is compared with the newest state; the first difference is told, then the
/// next. A device that becomes unhealthy, or unhealthy for another reason, is a warning; its recovery
/// is not; one that is healthy and whose hand-over failed is a warning too. A part that fails with its
/// whole is not told: the whole is. The same news again makes its
/// event a series.
///
/// # Guarantees
///
/// At most 32 events at once, and one in ten seconds after that. What cannot be told yet is told when
/// it can, as it then is: changes that were undone meanwhile are not told at all, and nothing queues.
pub async fn run(state: watch::Receiver<Arc<NodeState>>, client: Client, stop: CancellationToken) {
    let attempts = Attempts::new("events", &client);
    let told = Told::default();
    let (series, bucket) = (Series::new(client.node()), Bucket::full(Instant::now()));
    let teller = Teller { state, client, attempts, told, series, bucket, connection: None };
    tokio::select! {
        () = stop.cancelled() => {}
        () = teller.run() => {}
    }
}

struct Teller {
    state: watch::Receiver<Arc<NodeState>>,
    client: Client,
    attempts: Attempts,
    told: Told,
    series: Series,
    bucket: Bucket,
    connection: Option<Connection>,
}

// === impl Teller ===

impl Teller {
    async fn run(mut self) {
        loop {
            let Some(report) = self.next_report() else {
                self.connection = None;
                changed(&mut self.state).await;
                continue;
            };
            if let Err(due) = self.bucket.take(Instant::now()) {
                // By then there may be other news.
                sleep_until(due).await;
                continue;
            }
            match self.tell(&report).await {
                Ok(()) => self.attempts.worked(),
                Err(error) => {
                    self.connection = None;
                    sleep(self.attempts.failed(&error)).await;
                }
            }
        }
    }

    fn next_report(&mut self) -> Option<Report> {
        let state = self.state.borrow_and_update().clone();
        self.told.next(&state)
    }

    async fn tell(&mut self, report: &Report) -> Result<(), ClusterError> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(self.client.connect().await?),
        };
        let write = self.series.next(report);
        match write_to(connection, &write).await {
            // The first attempt got through, its answer did not.
            Err(error) if error.status().is_some_and(Status::is_already_exists) => {}
            // The event has expired; it is written anew.
            Err(error) if error.is_not_found() && write.is_repetition() => {
                self.series.forget(report);
                return Ok(());
            }
            // One that the API server will never take must not hold up the others.
            Err(error) if error.status().is_some_and(Status::is_invalid) => {
                tracing::error!(%error, "an event is lost");
            }
            written => written?,
        }
        self.series.written(report, write);
        self.told.tell(report);
        Ok(())
    }
}

async fn write_to(connection: &Connection, write: &Write) -> Result<(), ClusterError> {
    let events: Api<Event> = Api::namespaced(connection.kube.clone(), NAMESPACE);
    let doing = || format!("cannot write event {NAMESPACE}/{}", write.name());
    match write {
        Write::Create(event) => {
            let how =
                PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
            connection.ask(doing, events.create(&how, event)).await.map(drop)
        }
        Write::Repeat { name, series } => {
            let how =
                PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
            let patch = Patch::Merge(serde_json::json!({"series": series}));
            connection.ask(doing, events.patch_metadata(name, &how, &patch)).await.map(drop)
        }
    }
}
