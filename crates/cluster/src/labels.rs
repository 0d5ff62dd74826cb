//! Publishes the node's labels and devices on its Node, or the labels in a `NodeFeature` object.

mod apply;

use std::{collections::BTreeMap, sync::Arc};

use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;
use windlass_config::{LabelOutput, Policy};
use windlass_host::{or_pending, watch::changed};

use self::apply::Target;
use super::{
    Client, ClusterError, request_backoff::RequestBackoff, shared_connection::SharedConnection,
};

/// Labels or annotations by key.
pub type Labels = BTreeMap<String, String>;

/// Writes the labels and keeps them up to date, until `stop`.
///
/// # Flow
///
/// Labels are applied server-side when they change, when the policy changes their target, and every
/// [`ClientTimeouts::apply_interval`](super::ClientTimeouts). Obsolete labels are removed; other writers' labels are
/// unchanged. If a new policy changes the target while the agent runs, the written labels are removed from the old
/// target. When the agent stops, the labels stay.
///
/// # Assumptions
///
/// An empty map at the start means that the labels are not known yet: labels of an earlier agent are not removed.
pub async fn run(
    labels: watch::Receiver<Arc<Labels>>,
    policy: watch::Receiver<Arc<Policy>>,
    client: Client,
    stop: CancellationToken,
) {
    let backoff = RequestBackoff::new("labels", &client);
    let target = |policy: &Policy| label_target(&policy.labels.output);
    let writer = Writer { labels, policy, target, client, backoff, last_write: None };
    writer.run_until(stop).await;
}

/// Writes the annotation with the node's devices and keeps it up to date, until `stop`.
///
/// Flow and assumptions are those of [`run`]. The agent owns the annotation: it replaces another writer's value.
pub async fn run_annotations(
    annotations: watch::Receiver<Arc<Labels>>,
    policy: watch::Receiver<Arc<Policy>>,
    client: Client,
    stop: CancellationToken,
) {
    let backoff = RequestBackoff::new("devices of the Node", &client);
    let target = |policy: &Policy| policy.labels.devices.then_some(Target::Annotations);
    let writer = Writer { labels: annotations, policy, target, client, backoff, last_write: None };
    writer.run_until(stop).await;
}

struct Writer {
    labels: watch::Receiver<Arc<Labels>>,
    policy: watch::Receiver<Arc<Policy>>,
    /// Target of the writes according to the policy, if any.
    target: fn(&Policy) -> Option<Target>,
    client: Client,
    backoff: RequestBackoff,
    last_write: Option<LastWrite>,
}

/// The labels of the last write.
struct LastWrite {
    target: Target,
    labels: Arc<Labels>,
    /// Keys that other writers set to other values.
    conflicting_keys: Vec<String>,
    /// Time of the next apply of unchanged labels.
    next_apply: Instant,
}

/// The next request, if any.
enum Request {
    None,
    Apply(Target, Arc<Labels>),
    Remove(Target),
}

// === impl Writer ===

impl Writer {
    async fn run_until(self, stop: CancellationToken) {
        // Boxed: the requests make this future large.
        stop.run_until_cancelled(Box::pin(self.run())).await;
    }

    async fn run(mut self) {
        loop {
            match self.write_changes().await {
                Ok(()) => self.wait().await,
                Err(error) => {
                    let delay = self.backoff.record_failure(&error);
                    // A new policy may be the remedy, so it ends the pause; new labels do not.
                    tokio::select! {
                        () = sleep(delay) => {}
                        () = changed(&mut self.policy) => {}
                    }
                }
            }
        }
    }

    async fn write_changes(&mut self) -> Result<(), ClusterError> {
        let connection = SharedConnection::new(self.client.clone());
        loop {
            let request = self.next_request();
            if matches!(request, Request::None) {
                return Ok(());
            }
            let connection = connection.connect().await?;
            match request {
                Request::Apply(target, labels) => {
                    let conflicting_keys =
                        apply::apply(&self.client, &connection, target, &labels).await?;
                    self.record_apply(target, labels, conflicting_keys);
                }
                Request::Remove(target) => {
                    apply::remove(&self.client, &connection, target).await?;
                    self.last_write = None;
                }
                Request::None => {}
            }
            self.backoff.record_success();
        }
    }

    fn next_request(&mut self) -> Request {
        let target = (self.target)(&self.policy.borrow_and_update());
        let labels = self.labels.borrow_and_update().clone();
        match (&self.last_write, target) {
            (Some(written), _) if Some(written.target) != target => Request::Remove(written.target),
            (Some(written), _)
                if written.labels == labels && Instant::now() < written.next_apply =>
            {
                Request::None
            }
            (None, Some(_)) if labels.is_empty() => Request::None,
            (_, Some(target)) => Request::Apply(target, labels),
            (_, None) => Request::None,
        }
    }

    fn record_apply(&mut self, target: Target, labels: Arc<Labels>, conflicting_keys: Vec<String>) {
        let previous = self.last_write.take();
        let logged =
            previous.as_ref().map(|written| &*written.conflicting_keys).unwrap_or_default();
        if !conflicting_keys.is_empty() && logged != conflicting_keys {
            tracing::warn!(
                labels = conflicting_keys.join(","),
                "labels not written: other field managers own them with other values"
            );
        }
        if previous.is_none_or(|previous| previous.labels != labels) {
            let count = labels.len() - conflicting_keys.len();
            match target {
                Target::Node | Target::NodeFeature => {
                    tracing::info!(count, to = target.name(), "labels written");
                }
                Target::Annotations => tracing::info!("devices written to Node"),
            }
        }
        let next_apply = Instant::now() + self.client.timeouts().apply_interval;
        self.last_write = Some(LastWrite { target, labels, conflicting_keys, next_apply });
    }

    async fn wait(&mut self) {
        let next_apply = self.last_write.as_ref().map(|written| written.next_apply);
        tokio::select! {
            () = changed(&mut self.labels) => {}
            () = changed(&mut self.policy) => {}
            () = or_pending(next_apply.map(sleep_until)) => {}
        }
    }
}

/// Target of a label output. Files are written elsewhere, without the API server.
fn label_target(output: &LabelOutput) -> Option<Target> {
    match output {
        LabelOutput::None | LabelOutput::File(_) => None,
        LabelOutput::NodeFeature => Some(Target::NodeFeature),
        LabelOutput::Node => Some(Target::Node),
    }
}
