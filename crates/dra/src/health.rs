//! Health of devices for the kubelet, which shows it in the status of pods. Each message contains all devices. It is
//! sent at each change, and repeated before the kubelet considers it stale.

use std::{collections::BTreeMap, pin::Pin, sync::Arc};

use tokio::{
    sync::watch,
    time::{Duration, interval},
};
use tokio_stream::{Stream, StreamExt as _, wrappers::WatchStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use windlass_allocations::ledger::Ledger;
use windlass_config::DriverName;
use windlass_core::{
    device::Device,
    health::{Health, HealthState},
    partition::instance_at,
};
use windlass_host::{clock::Clock, state_file::Versioned};
use windlass_kubelet_api::dra::health::{
    DeviceHealth, DeviceIdentifier, HealthStatus, NodeWatchResourcesRequest,
    NodeWatchResourcesResponse, dra_resource_health_server::DraResourceHealth,
};
use windlass_resources::NodeState;

use super::{catalog::Catalog, record::Records};

/// gRPC service that streams the list to each caller.
#[derive(Debug)]
pub(super) struct HealthService(pub(super) watch::Receiver<NodeWatchResourcesResponse>);

/// Builds and publishes the list.
#[derive(Clone, Debug)]
pub(super) struct HealthPublisher {
    pub(super) node: String,
    pub(super) driver: DriverName,
    pub(super) clock: Clock,
    pub(super) state: watch::Receiver<Arc<NodeState>>,
    pub(super) records: watch::Receiver<Versioned<Records>>,
}

/// Health of each device, by pool and name.
type DeviceStatuses = BTreeMap<(String, String), (HealthStatus, String)>;

/// Interval at which an unchanged list is repeated.
const RESEND_INTERVAL: Duration = Duration::from_secs(10);

/// Age at which the kubelet considers health unknown.
const STALE_AFTER: Duration = Duration::from_secs(30);

/// The kubelet's limit for a message, in characters.
const MAX_MESSAGE_CHARS: usize = 1024;

// === impl HealthPublisher ===

impl HealthPublisher {
    pub(super) fn snapshot(&mut self) -> NodeWatchResourcesResponse {
        let statuses = self.statuses();
        self.message(&statuses)
    }

    /// Publishes the list until stopped, which also ends the streams.
    pub(super) async fn run(
        mut self,
        sender: watch::Sender<NodeWatchResourcesResponse>,
        stop: CancellationToken,
    ) {
        let mut resend = interval(RESEND_INTERVAL);
        resend.reset();
        let mut statuses = self.statuses();
        loop {
            sender.send_replace(self.message(&statuses));
            statuses = tokio::select! {
                () = stop.cancelled() => return,
                _ = resend.tick() => statuses,
                changed = self.next_change(&statuses) => match changed {
                    Some(changed) => changed,
                    None => return,
                },
            };
        }
    }

    /// Waits until the health differs from this one; `None` once the state or the records have ended.
    async fn next_change(&mut self, statuses: &DeviceStatuses) -> Option<DeviceStatuses> {
        loop {
            tokio::select! {
                changed = self.state.changed() => changed.ok()?,
                changed = self.records.changed() => changed.ok()?,
            }
            let changed = self.statuses();
            if changed != *statuses {
                return Some(changed);
            }
        }
    }

    /// Health of all offered and claimed devices. A claimed device that vanished is unhealthy.
    fn statuses(&mut self) -> DeviceStatuses {
        let state = self.state.borrow_and_update().clone();
        let catalog = Catalog::of(&state, &self.node, &self.driver, &Ledger::default());
        let vanished = (HealthStatus::Unhealthy, "no longer on this node".to_owned());
        let records = self.records.borrow_and_update();
        let held_devices = records.1.values().flat_map(|record| &record.devices);
        let claimed = held_devices.map(|device| {
            let current_status =
                device.find_in(&state.inventory).map(|device| status(&device.health));
            (
                (device.pool.clone(), device.name.clone()),
                current_status.unwrap_or_else(|| vanished.clone()),
            )
        });
        let entries = catalog
            .pools
            .iter()
            .flat_map(|(name, pool)| pool.entries.iter().map(move |entry| (name.clone(), entry)));
        let offered = entries.filter_map(|(pool, entry)| {
            let instance_or_gpu = entry.partition.as_ref().map(|placement| {
                let instance = instance_at(&state.inventory, placement);
                instance.or_else(|| state.inventory.get(placement.gpu.as_str()))
            });
            let published_device =
                instance_or_gpu.unwrap_or_else(|| state.inventory.get(entry.device.as_str()));
            let device: &Device = published_device?;
            Some(((pool, entry.name.to_string()), status(&device.health)))
        });
        claimed.chain(offered).collect()
    }

    fn message(&self, statuses: &DeviceStatuses) -> NodeWatchResourcesResponse {
        let now = self.clock.now().as_second();
        let devices = statuses.iter().map(|((pool, name), (health, message))| DeviceHealth {
            device: Some(DeviceIdentifier { pool_name: pool.clone(), device_name: name.clone() }),
            health: (*health).into(),
            last_updated_time: now,
            health_check_timeout_seconds: i64::try_from(STALE_AFTER.as_secs()).unwrap_or(i64::MAX),
            message: message.clone(),
        });
        NodeWatchResourcesResponse { devices: devices.collect() }
    }
}

fn status(health: &Health) -> (HealthStatus, String) {
    let status = match health.state {
        HealthState::Unknown => HealthStatus::Unknown,
        HealthState::Healthy => HealthStatus::Healthy,
        HealthState::Unhealthy => HealthStatus::Unhealthy,
    };
    let failure = health.failure().map(ToString::to_string).unwrap_or_default();
    (status, failure.chars().take(MAX_MESSAGE_CHARS).collect())
}

// === impl HealthService ===

#[tonic::async_trait]
impl DraResourceHealth for HealthService {
    type NodeWatchResourcesStream =
        Pin<Box<dyn Stream<Item = Result<NodeWatchResourcesResponse, Status>> + Send>>;

    async fn node_watch_resources(
        &self,
        _: Request<NodeWatchResourcesRequest>,
    ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
        Ok(Response::new(Box::pin(WatchStream::new(self.0.clone()).map(Ok))))
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_unchanged_list_is_repeated_every_ten_seconds() {
        let (_state, state) = watch::channel(Arc::<NodeState>::default());
        let (records, read_records) = watch::channel(Versioned::<Records>::default());
        let publisher = HealthPublisher {
            node: "n1".to_owned(),
            driver: DriverName::default(),
            clock: Clock::starting_at(Timestamp::UNIX_EPOCH),
            state,
            records: read_records,
        };
        let (sender, mut lists) = watch::channel(NodeWatchResourcesResponse::default());
        let stop = CancellationToken::new();
        let start = Instant::now();
        let read = async {
            for repetition in 0..4 {
                lists.changed().await.expect("it publishes");
                assert_eq!(start.elapsed(), RESEND_INTERVAL * repetition);
                // A change that leaves every device's health as it was is not sent.
                records.send_modify(|_| {});
            }
            stop.cancel();
        };
        tokio::join!(publisher.run(sender, stop.clone()), read);
    }
}
