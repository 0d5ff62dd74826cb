//! Node labels and devices, computed from inventory and policy, for the API server and for node-feature-discovery's
//! file.

pub(crate) mod devices;

mod facts;
mod file;
mod offering;
mod vgpu;

use std::{sync::Arc, time::Duration};

use file::FeatureFile;
use jiff::Timestamp;
use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;
use windlass_config::{LabelOutput, Policy};
use windlass_core::labels::{LabelInput, Labels, labels};
use windlass_host::{Host, blocking, causes, clock::Clock};
use windlass_resources::NodeState;

/// Task that computes the labels of this node.
#[derive(Debug)]
pub struct Labeller {
    host: Host,
    clock: Clock,
    state: watch::Receiver<Arc<NodeState>>,
    policy: watch::Receiver<Arc<Policy>>,
    labels: watch::Sender<Arc<Labels>>,
    /// File as last written.
    file: Option<FeatureFile>,
    last_error: Option<String>,
}

/// First delay before a failed write is repeated; it doubles.
const RETRY_MIN: Duration = Duration::from_secs(10);

/// Longest delay before a failed write is repeated.
const RETRY_MAX: Duration = Duration::from_secs(300);

/// Labels of a host. Reading the host may take long. `timestamp` is the value of the timestamp label, which the
/// policy may disable.
pub fn compute(host: &Host, policy: &Policy, state: &NodeState, timestamp: Timestamp) -> Labels {
    let inventory = &state.inventory;
    labels(&LabelInput {
        inventory,
        offerings: &offering::offerings(policy, inventory),
        instances: offering::instance_names(policy.mig),
        host: &facts::read(host, policy.labels.machine_type_file.as_deref()),
        enforcement: state.weakest_enforcement(),
        timestamp: policy.labels.timestamp.then_some(timestamp),
    })
}

// === impl Labeller ===

impl Labeller {
    /// Creates a labeller and the channel of its labels. The labels are empty until the inventory is complete,
    /// and while the policy disables them.
    pub fn new(
        host: Host,
        clock: Clock,
        state: watch::Receiver<Arc<NodeState>>,
        policy: watch::Receiver<Arc<Policy>>,
    ) -> (Self, watch::Receiver<Arc<Labels>>) {
        let (sender, labels) = watch::channel(Arc::new(Labels::new()));
        let labeller =
            Self { host, clock, state, policy, labels: sender, file: None, last_error: None };
        (labeller, labels)
    }

    /// Keeps the labels up to date until stopped, then removes the file. Runs at changes, and again after a failed
    /// write.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut timestamp = self.clock.now();
        let mut retry = RETRY_MIN;
        loop {
            self.refresh(timestamp, &stop).await;
            let has_failed = self.last_error.is_some();
            retry = if has_failed { retry } else { RETRY_MIN };
            tokio::select! {
                () = stop.cancelled() => break,
                Ok(()) = self.state.changed() => {}
                Ok(()) = self.policy.changed() => timestamp = self.clock.now(),
                () = sleep(retry), if has_failed => retry = RETRY_MAX.min(retry * 2),
            }
        }
        self.update_file(None).await;
    }

    async fn refresh(&mut self, timestamp: Timestamp, stop: &CancellationToken) {
        let state = self.state.borrow_and_update().clone();
        let policy = self.policy.borrow_and_update().clone();
        let output = policy.labels.output.clone();
        if output == LabelOutput::None {
            self.publish(Labels::new());
            return self.update_file(None).await;
        }
        if !state.inventory.is_complete() {
            return;
        }
        let host = self.host.clone();
        let read = blocking(move || compute(&host, &policy, &state, timestamp));
        // Slow firmware must not delay the shutdown.
        let Some(labels) = stop.run_until_cancelled(read).await else { return };
        let file = match &output {
            LabelOutput::File(path) => Some(FeatureFile::new(path, &labels)),
            _ => None,
        };
        self.publish(labels);
        self.update_file(file).await;
    }

    fn publish(&self, labels: Labels) {
        windlass_host::watch::publish_if_changed(&self.labels, Arc::new(labels));
    }

    /// Brings the file up to date. Logs a repeated error once.
    async fn update_file(&mut self, target: Option<FeatureFile>) {
        if self.file == target {
            self.last_error = None;
            return;
        }
        let previous = self.file.clone();
        let file = target.clone();
        let write = move || file::replace(previous.as_ref(), file.as_ref());
        match blocking(write).await {
            Ok(()) => (self.file, self.last_error) = (target, None),
            Err(error) => {
                let error = causes(&error);
                if self.last_error.replace(error.clone()).as_ref() != Some(&error) {
                    tracing::warn!(error, "label file not updated, trying again");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
