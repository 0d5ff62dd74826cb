//! The node's labels: made anew whenever the inventory or the policy changes, published for whoever
//! writes them to the API server, and kept in a file for node-feature-discovery.

mod facts;
mod file;
mod offering;
mod vgpu;

use std::{sync::Arc, time::Duration};

use file::FeatureFile;
use jiff::Timestamp;
use tokio::{sync::watch, task::spawn_blocking, time::sleep};
use tokio_util::sync::CancellationToken;
use windlass_config::{LabelOutput, Policy};
use windlass_core::{
    inventory::Inventory,
    labels::{LabelInput, Labels, labels},
};
use windlass_host::{Host, causes, clock::Clock};
use windlass_resources::NodeState;

/// Makes the labels of this node.
#[derive(Debug)]
pub struct Labeller {
    host: Host,
    clock: Clock,
    state: watch::Receiver<Arc<NodeState>>,
    policy: watch::Receiver<Arc<Policy>>,
    publish: watch::Sender<Arc<Labels>>,
    /// The file as it was last written.
    file: Option<FeatureFile>,
    /// Why the file is not as it should be.
    trouble: Option<String>,
}

/// First wait before a file that could not be written is tried again; it doubles.
const RETRY_FIRST: Duration = Duration::from_secs(10);

/// Longest wait before that.
const RETRY_MOST: Duration = Duration::from_secs(300);

/// The labels of a host, which is read for what its inventory does not tell; that may take long. `asked`
/// is the time that the labels tell, if the policy wants them to.
pub fn of(host: &Host, policy: &Policy, inventory: &Inventory, asked: Timestamp) -> Labels {
    labels(&LabelInput {
        inventory,
        offerings: &offering::offerings(policy, inventory),
        instances: offering::instance_names(policy.mig),
        host: &facts::read(host, policy.labels.machine_type_file.as_deref()),
        timestamp: policy.labels.timestamp.then_some(asked),
    })
}

// === impl Labeller ===

impl Labeller {
    /// A labeller, and where it publishes. What it publishes is empty until the inventory is complete, while
    /// the policy wants no labels, and of a node of which nothing is known.
    pub fn new(
        host: Host,
        clock: Clock,
        state: watch::Receiver<Arc<NodeState>>,
        policy: watch::Receiver<Arc<Policy>>,
    ) -> (Self, watch::Receiver<Arc<Labels>>) {
        let (publish, labels) = watch::channel(Arc::new(Labels::new()));
        let (file, trouble) = (None, None);
        (Self { host, clock, state, policy, publish, file, trouble }, labels)
    }

    /// Keeps the labels until stopped, and then takes the file along. Nothing is done without news, but
    /// for a file that could not be written.
    pub async fn run(mut self, stop: CancellationToken) {
        let (mut asked, mut retry) = (self.clock.now(), RETRY_FIRST);
        loop {
            self.refresh(asked, &stop).await;
            let failing = self.trouble.is_some();
            retry = if failing { retry } else { RETRY_FIRST };
            tokio::select! {
                () = stop.cancelled() => break,
                Ok(()) = self.state.changed() => {}
                Ok(()) = self.policy.changed() => asked = self.clock.now(),
                () = sleep(retry), if failing => retry = RETRY_MOST.min(retry * 2),
            }
        }
        self.put(None).await;
    }

    async fn refresh(&mut self, asked: Timestamp, stop: &CancellationToken) {
        let state = self.state.borrow_and_update().clone();
        let policy = self.policy.borrow_and_update().clone();
        let output = policy.labels.output.clone();
        if output == LabelOutput::None {
            self.publish(Labels::new());
            return self.put(None).await;
        }
        if !state.inventory.is_complete() {
            return;
        }
        let host = self.host.clone();
        let read = spawn_blocking(move || of(&host, &policy, &state.inventory, asked));
        // Firmware that does not answer keeps nobody from stopping; a file that is being written does.
        let Some(labels) = stop.run_until_cancelled(read).await else { return };
        let labels = labels.expect("reading neither panics nor is cancelled");
        let file = match &output {
            LabelOutput::File(path) => Some(FeatureFile::new(path, &labels)),
            _ => None,
        };
        self.publish(labels);
        self.put(file).await;
    }

    fn publish(&self, labels: Labels) {
        windlass_host::watch::publish(&self.publish, Arc::new(labels));
    }

    /// Brings the file up to date. A trouble is said once.
    async fn put(&mut self, wanted: Option<FeatureFile>) {
        if self.file == wanted {
            self.trouble = None;
            return;
        }
        let (before, file) = (self.file.clone(), wanted.clone());
        let exchange = move || file::exchange(before.as_ref(), file.as_ref());
        let done = spawn_blocking(exchange).await.expect("writing neither panics nor is cancelled");
        match done {
            Ok(()) => (self.file, self.trouble) = (wanted, None),
            Err(error) => {
                let error = causes(&error);
                if self.trouble.as_ref() != Some(&error) {
                    tracing::warn!(error, "labels are not up to date");
                }
                self.trouble = Some(error);
            }
        }
    }
}

#[cfg(test)]
mod tests;
