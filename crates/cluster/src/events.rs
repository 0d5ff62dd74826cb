//! Events on the Node for changes of device health.

mod bucket;
mod report;
mod series;

use std::sync::Arc;

use k8s_openapi::api::events::v1::Event;
use kube::{
    Api,
    api::{Patch, PatchParams},
    core::Status,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;
use windlass_core::event_reason::MAX_INSTANCE_BYTES;
use windlass_host::{abbreviate::prefix, watch::changed};
use windlass_resources::NodeState;

use self::{
    bucket::TokenBucket,
    report::{Report, ReportedDevices},
    series::{EventWrite, Series},
};
use super::{
    Client, ClusterError, FIELD_MANAGER, client::Connection, create_params,
    request_backoff::RequestBackoff, shared_connection::SharedConnection,
};

/// Namespace of events about cluster-scoped objects; the API server accepts no other.
const NAMESPACE: &str = "default";

/// Controller that reports the agent's events.
pub(crate) const REPORTING_CONTROLLER: &str = "windlass.dev/node";

/// Writes events about device health to the Node, until `stop`.
///
/// # Flow
///
/// The newest state is compared with the reported one. Each difference becomes an event, one after another. A device
/// that becomes unhealthy, or whose failure changes, has an event of type `Warning`; a recovery has type `Normal`. A
/// healthy device whose cleanup failed has a `Warning`, too. A partition that fails together with its parent has no
/// event. A repeated report turns its event into a series.
///
/// # Guarantees
///
/// At most 32 events are written in a burst, then one in ten seconds. Events are not queued: a delayed event describes
/// the state at the time of its write. A change that was undone before its write has no event.
pub async fn run(state: watch::Receiver<Arc<NodeState>>, client: Client, stop: CancellationToken) {
    let backoff = RequestBackoff::new("events", &client);
    let reported = ReportedDevices::default();
    let (series, bucket) = (Series::new(client.node()), TokenBucket::full(Instant::now()));
    let connection = SharedConnection::new(client);
    let writer = EventWriter { state, connection, backoff, reported, series, bucket };
    stop.run_until_cancelled(writer.run()).await;
}

struct EventWriter {
    state: watch::Receiver<Arc<NodeState>>,
    connection: SharedConnection,
    backoff: RequestBackoff,
    reported: ReportedDevices,
    series: Series,
    bucket: TokenBucket,
}

// === impl EventWriter ===

impl EventWriter {
    async fn run(mut self) {
        loop {
            let Some(report) = self.next_report() else {
                self.connection.reset();
                changed(&mut self.state).await;
                continue;
            };
            if let Err(due) = self.bucket.take(Instant::now()) {
                // The state may change during the pause, so compare again.
                sleep_until(due).await;
                continue;
            }
            match self.write(&report).await {
                Ok(()) => self.backoff.record_success(),
                Err(error) => {
                    self.connection.reset();
                    sleep(self.backoff.record_failure(&error)).await;
                }
            }
        }
    }

    fn next_report(&mut self) -> Option<Report> {
        let state = self.state.borrow_and_update().clone();
        self.reported.next(&state)
    }

    async fn write(&mut self, report: &Report) -> Result<(), ClusterError> {
        let connection = self.connection.connect().await?;
        let write = self.series.next(report);
        match write_to(&connection, &write).await {
            // An earlier attempt succeeded, and its answer was lost.
            Err(error) if error.status().is_some_and(Status::is_already_exists) => {}
            // The event has expired; a new one is written.
            Err(error) if error.is_not_found() && write.is_series_update() => {
                self.series.remove(report);
                return Ok(());
            }
            // An event that the API server never accepts must not block others.
            Err(error) if error.status().is_some_and(Status::is_invalid) => {
                tracing::error!(%error, "event refused by the API server and dropped");
            }
            written => written?,
        }
        self.series.record(report, write);
        self.reported.add(report);
        Ok(())
    }
}

async fn write_to(connection: &Connection, write: &EventWrite) -> Result<(), ClusterError> {
    let events: Api<Event> = Api::namespaced(connection.kube.clone(), NAMESPACE);
    let context = || format!("cannot write event {NAMESPACE}/{}", write.name());
    match write {
        EventWrite::Create(event) => {
            connection.call(context, events.create(&create_params(), event)).await.map(drop)
        }
        EventWrite::UpdateSeries { name, series } => {
            let params = PatchParams::apply(FIELD_MANAGER);
            let patch = Patch::Merge(serde_json::json!({"series": series}));
            connection.call(context, events.patch_metadata(name, &params, &patch)).await.map(drop)
        }
    }
}

/// `reportingInstance` of the agent's events.
pub(crate) fn reporting_instance(node: &str) -> String {
    prefix(node, MAX_INSTANCE_BYTES).to_owned()
}
