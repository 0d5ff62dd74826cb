//! Labels out: the node's labels, kept on its Node or in a `NodeFeature` object.

mod apply;

use std::{collections::BTreeMap, sync::Arc};

use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;
use windlass_config::{LabelOutput, Policy};
use windlass_host::watch::changed;

use self::apply::Place;
use super::{Client, ClusterError, attempts::Attempts};

/// Labels by key.
pub type Labels = BTreeMap<String, String>;

/// Keeps the labels written, until stopped.
///
/// # Flow
///
/// Labels are applied server-side when they change, when the policy sends them elsewhere, and every
/// [`Limits::apply_again`](super::Limits) besides. A label that is no longer among them is removed;
/// labels of others stay. When the policy changes while the agent runs, what was written before is
/// taken back; when the agent stops, it stays.
///
/// # Assumptions
///
/// No labels at the start means that they are not known yet: they are not taken for a wish to remove
/// those that an earlier life of the agent has written.
pub async fn run(
    labels: watch::Receiver<Arc<Labels>>,
    policy: watch::Receiver<Arc<Policy>>,
    client: Client,
    stop: CancellationToken,
) {
    let attempts = Attempts::new("labels", &client);
    let writer = Writer { labels, policy, client, attempts, written: None };
    tokio::select! {
        () = stop.cancelled() => {}
        () = writer.run() => {}
    }
}

struct Writer {
    labels: watch::Receiver<Arc<Labels>>,
    policy: watch::Receiver<Arc<Policy>>,
    client: Client,
    attempts: Attempts,
    written: Option<Written>,
}

/// What was written last.
struct Written {
    place: Place,
    labels: Arc<Labels>,
    /// Keys that others have other values for.
    contested: Vec<String>,
    again: Instant,
}

/// What is to be done.
enum Step {
    Rest,
    Apply(Place, Arc<Labels>),
    TakeBack(Place),
}

// === impl Writer ===

impl Writer {
    async fn run(mut self) {
        loop {
            match self.work().await {
                Ok(()) => self.news().await,
                Err(error) => {
                    let pause = self.attempts.failed(&error);
                    // Another policy may be the cure, and is tried at once; other labels can wait.
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
            let step = self.next_step();
            if matches!(step, Step::Rest) {
                return Ok(());
            }
            let connection = match &mut connection {
                Some(connection) => connection,
                none => none.insert(self.client.connect().await?),
            };
            match step {
                Step::Apply(place, labels) => {
                    let contested = apply::apply(&self.client, connection, place, &labels).await?;
                    self.applied(place, labels, contested);
                }
                Step::TakeBack(place) => {
                    apply::take_back(&self.client, connection, place).await?;
                    self.written = None;
                }
                Step::Rest => {}
            }
            self.attempts.worked();
        }
    }

    fn next_step(&mut self) -> Step {
        let wanted = place(&self.policy.borrow_and_update().labels.output);
        let labels = self.labels.borrow_and_update().clone();
        match (&self.written, wanted) {
            (Some(written), _) if Some(written.place) != wanted => Step::TakeBack(written.place),
            (Some(written), _) if written.labels == labels && Instant::now() < written.again => {
                Step::Rest
            }
            (None, Some(_)) if labels.is_empty() => Step::Rest,
            (_, Some(place)) => Step::Apply(place, labels),
            (_, None) => Step::Rest,
        }
    }

    fn applied(&mut self, place: Place, labels: Arc<Labels>, contested: Vec<String>) {
        let before = self.written.take();
        let said = before.as_ref().map(|written| &*written.contested).unwrap_or_default();
        if !contested.is_empty() && said != contested {
            tracing::warn!(
                labels = contested.join(","),
                "others keep these labels at other values: theirs stay"
            );
        }
        if before.is_none_or(|before| before.labels != labels) {
            let count = labels.len() - contested.len();
            tracing::info!(count, to = place.name(), "labels written");
        }
        let again = Instant::now() + self.client.limits().apply_again;
        self.written = Some(Written { place, labels, contested, again });
    }

    async fn news(&mut self) {
        let again = self.written.as_ref().map(|written| written.again);
        tokio::select! {
            () = changed(&mut self.labels) => {}
            () = changed(&mut self.policy) => {}
            () = due(again) => {}
        }
    }
}

async fn due(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Files are written by others, without the API server.
fn place(output: &LabelOutput) -> Option<Place> {
    match output {
        LabelOutput::None | LabelOutput::File(_) => None,
        LabelOutput::NodeFeature => Some(Place::NodeFeature),
        LabelOutput::Node => Some(Place::Node),
    }
}
