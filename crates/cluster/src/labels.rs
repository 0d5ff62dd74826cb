//! Publication of the node's labels and devices: on its Node, or labels in a `NodeFeature` object.

mod apply;

use std::{collections::BTreeMap, sync::Arc};

use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;
use windlass_config::{LabelOutput, Policy};
use windlass_host::{optional, watch::changed};

use self::apply::Target;
use super::{Client, ClusterError, attempts::Attempts};

/// Labels or annotations by key.
pub type Labels = BTreeMap<String, String>;

/// Keeps the labels written, until `stop`.
///
/// # Flow
///
/// Labels are applied server-side when they change, when the policy changes their target, and every
/// [`Limits::apply_again`](super::Limits). Obsolete labels are removed; other writers' labels stay. If the
/// policy changes while the agent runs, the written labels are removed; when the agent stops, they stay.
///
/// # Assumptions
///
/// An empty map at the start means that the labels are not known yet. It does not remove labels of an earlier agent.
pub async fn run(
    labels: watch::Receiver<Arc<Labels>>,
    policy: watch::Receiver<Arc<Policy>>,
    client: Client,
    stop: CancellationToken,
) {
    let attempts = Attempts::new("labels", &client);
    let target = |policy: &Policy| label_target(&policy.labels.output);
    let writer = Writer { labels, policy, target, client, attempts, written: None };
    writer.keep(stop).await;
}

/// Keeps the annotation with the node's devices written, until `stop`.
///
/// Flow and assumptions are those of [`run`]. The agent owns the annotation: another writer's value is replaced.
pub async fn run_devices(
    annotations: watch::Receiver<Arc<Labels>>,
    policy: watch::Receiver<Arc<Policy>>,
    client: Client,
    stop: CancellationToken,
) {
    let attempts = Attempts::new("devices of the Node", &client);
    let target = |policy: &Policy| policy.labels.devices.then_some(Target::Annotations);
    let writer = Writer { labels: annotations, policy, target, client, attempts, written: None };
    writer.keep(stop).await;
}

struct Writer {
    labels: watch::Receiver<Arc<Labels>>,
    policy: watch::Receiver<Arc<Policy>>,
    /// Target of the writes according to the policy, if any.
    target: fn(&Policy) -> Option<Target>,
    client: Client,
    attempts: Attempts,
    written: Option<Written>,
}

/// The labels of the last write.
struct Written {
    target: Target,
    labels: Arc<Labels>,
    /// Keys that other writers set to other values.
    contested: Vec<String>,
    again: Instant,
}

/// The next request, if any.
enum Request {
    None,
    Apply(Target, Arc<Labels>),
    Remove(Target),
}

// === impl Writer ===

impl Writer {
    async fn keep(self, stop: CancellationToken) {
        // Boxed: the requests make this future large.
        stop.run_until_cancelled(Box::pin(self.run())).await;
    }

    async fn run(mut self) {
        loop {
            match self.work().await {
                Ok(()) => self.wait().await,
                Err(error) => {
                    let pause = self.attempts.failed(&error);
                    // A new policy may be the remedy, so it ends the pause; new labels do not.
                    tokio::select! {
                        () = sleep(pause) => {}
                        () = changed(&mut self.policy) => {}
                    }
                }
            }
        }
    }

    async fn work(&mut self) -> Result<(), ClusterError> {
        let mut connection = None;
        loop {
            let request = self.next_request();
            if matches!(request, Request::None) {
                return Ok(());
            }
            let connection = match &mut connection {
                Some(connection) => connection,
                none => none.insert(self.client.connect().await?),
            };
            match request {
                Request::Apply(target, labels) => {
                    let contested = apply::apply(&self.client, connection, target, &labels).await?;
                    self.applied(target, labels, contested);
                }
                Request::Remove(target) => {
                    apply::remove(&self.client, connection, target).await?;
                    self.written = None;
                }
                Request::None => {}
            }
            self.attempts.succeeded();
        }
    }

    fn next_request(&mut self) -> Request {
        let wanted = (self.target)(&self.policy.borrow_and_update());
        let labels = self.labels.borrow_and_update().clone();
        match (&self.written, wanted) {
            (Some(written), _) if Some(written.target) != wanted => Request::Remove(written.target),
            (Some(written), _) if written.labels == labels && Instant::now() < written.again => {
                Request::None
            }
            (None, Some(_)) if labels.is_empty() => Request::None,
            (_, Some(target)) => Request::Apply(target, labels),
            (_, None) => Request::None,
        }
    }

    fn applied(&mut self, target: Target, labels: Arc<Labels>, contested: Vec<String>) {
        let before = self.written.take();
        let known = before.as_ref().map(|written| &*written.contested).unwrap_or_default();
        if !contested.is_empty() && known != contested {
            tracing::warn!(
                labels = contested.join(","),
                "labels not written: other field managers own them with other values"
            );
        }
        if before.is_none_or(|before| before.labels != labels) {
            let count = labels.len() - contested.len();
            match target {
                Target::Node | Target::NodeFeature => {
                    tracing::info!(count, to = target.name(), "labels written");
                }
                Target::Annotations => tracing::info!("devices written to Node"),
            }
        }
        let again = Instant::now() + self.client.limits().apply_again;
        self.written = Some(Written { target, labels, contested, again });
    }

    async fn wait(&mut self) {
        let again = self.written.as_ref().map(|written| written.again);
        tokio::select! {
            () = changed(&mut self.labels) => {}
            () = changed(&mut self.policy) => {}
            () = optional(again.map(sleep_until)) => {}
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
