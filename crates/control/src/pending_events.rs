//! Events of pending pods: the reasons why no node can serve a pod, and a pod whose end would help.
//!
//! kube-scheduler's own event names devices only where the extender filters nodes, which it does not for claims, and
//! has no remedy.
//!
//! ```text
//!  kube-scheduler ──condition PodScheduled=False──> API server ──watch──> index ──UID──> explanation ──> Event
//! ```
//!
//! # Guarantees
//!
//! A pod has an event soon after kube-scheduler first finds no node for it, and again after a change of kube-scheduler's
//! message, at least ten minutes later. A pod whose message stays the same has no further event. Replicas, and a
//! restarted one, write the event of one message once: its name is a digest of the pod and of the message.
//!
//! An event names no pod of another namespace, whose name its readers may not know.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, api::PostParams};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until},
};
use windlass_core::{
    event_reason::{EventReason, MAX_INSTANCE_BYTES, MAX_NOTE_BYTES},
    name::digest,
};
use windlass_host::{abbreviate::prefix, causes, clock::Clock, shared::Shared};

use crate::{explanation::Explanation, facts::PodFacts, index::Index};

/// Minimum time between two events of a pod.
const MIN_EVENT_INTERVAL: Duration = Duration::from_secs(600);
/// Pause after each explanation: of many pending pods, ten per second are explained.
const EXPLANATION_PAUSE: Duration = Duration::from_millis(100);
/// Pause after an event that could not be written. It doubles up to `MIN_EVENT_INTERVAL`.
const RETRY_PAUSE: Duration = Duration::from_secs(5);
const REPORTING_CONTROLLER: &str = "windlass.dev/extender";

/// Writes events about pending pods.
pub(crate) struct PendingEvents {
    index: Arc<Shared<Index>>,
    /// Notified when the index has further unschedulable pods.
    unschedulable_added: Arc<Notify>,
    client: kube::Client,
    clock: Clock,
    /// Name of this replica in the events.
    identity: String,
}

/// Times of the events.
#[derive(Debug, Default)]
struct Schedule {
    /// By UID: time at which a pod is explained.
    due: HashMap<String, Instant>,
    /// By UID: time of a pod's last event.
    written: HashMap<String, Instant>,
}

// === impl Schedule ===

impl Schedule {
    /// Adds pods with a new message: due now, or `MIN_EVENT_INTERVAL` after their last event.
    fn add(&mut self, uids: BTreeSet<String>, now: Instant) {
        self.written.retain(|_, time| now - *time < MIN_EVENT_INTERVAL);
        for uid in uids {
            let earliest = self.written.get(&uid).map(|time| *time + MIN_EVENT_INTERVAL);
            self.due.entry(uid).or_insert(earliest.unwrap_or(now));
        }
    }

    /// The pod that is due first, and its time.
    fn next(&self) -> Option<(String, Instant)> {
        let first = self.due.iter().min_by_key(|(uid, due)| (**due, *uid));
        first.map(|(uid, due)| (uid.clone(), *due))
    }
}

// === impl PendingEvents ===

impl PendingEvents {
    pub(crate) fn new(
        index: Arc<Shared<Index>>,
        client: kube::Client,
        clock: Clock,
        identity: &str,
    ) -> Self {
        let unschedulable_added = index.with_lock(|index| index.unschedulable_added());
        let identity = prefix(identity, MAX_INSTANCE_BYTES).to_owned();
        Self { index, unschedulable_added, client, clock, identity }
    }

    /// Writes the events. Never returns.
    pub(crate) async fn run(self) {
        let (mut schedule, mut retry_pause) = (Schedule::default(), RETRY_PAUSE);
        loop {
            let uids = self.index.with_lock(Index::take_unschedulable);
            schedule.add(uids, Instant::now());
            let Some((uid, due)) = schedule.next() else {
                self.unschedulable_added.notified().await;
                continue;
            };
            if due > Instant::now() {
                tokio::select! {
                    () = sleep_until(due) => {}
                    // Another pod may be due before.
                    () = self.unschedulable_added.notified() => {}
                }
                continue;
            }
            if let Some(event) = self.explain(&uid).await {
                if let Err(error) = self.write(&event).await {
                    if retry_pause == RETRY_PAUSE {
                        let (namespace, error) = (event.metadata.namespace, causes(&error));
                        tracing::warn!(
                            namespace,
                            error,
                            "events of pending pods cannot be written"
                        );
                    }
                    sleep(retry_pause).await;
                    retry_pause = (2 * retry_pause).min(MIN_EVENT_INTERVAL);
                    continue;
                }
                retry_pause = RETRY_PAUSE;
                schedule.written.insert(uid.clone(), Instant::now());
            }
            schedule.due.remove(&uid);
            sleep(EXPLANATION_PAUSE).await;
        }
    }

    /// The event of a pod. `None` if a node fits, or if the index cannot judge the claims: then kube-scheduler's own
    /// event has the reason, such as a taint.
    async fn explain(&self, uid: &str) -> Option<Event> {
        let (pod, claims, names) = self.index.with_lock(|index| {
            let pod = index.pending_pod(uid)?;
            let claims = index.pod_claims(&pod);
            index.can_judge_claims(&claims).then(|| (pod, claims, index.node_names()))
        })?;
        let explanation = Explanation::of_refusals(&self.index, &pod, &claims, &names).await?;
        Some(self.event(&pod, &explanation))
    }

    async fn write(&self, event: &Event) -> kube::Result<()> {
        let namespace = event.metadata.namespace.as_deref().unwrap_or_default();
        let api = Api::namespaced(self.client.clone(), namespace);
        match api.create(&PostParams::default(), event).await {
            // Another replica wrote it, or this one before a restart; or the namespace is being deleted with the pod.
            Err(kube::Error::Api(status))
                if status.is_already_exists()
                    || status.is_not_found()
                    || status.message.contains("is being terminated") =>
            {
                Ok(())
            }
            result => result.map(drop),
        }
    }

    fn event(&self, pod: &PodFacts, explanation: &Explanation) -> Event {
        let message = pod.unschedulable.as_deref().unwrap_or_default();
        let name = digest(&format!("{} {message}", pod.uid));
        Event {
            metadata: ObjectMeta {
                name: Some(format!("windlass-{name:016x}")),
                namespace: Some(pod.namespace.clone()),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(self.clock.now())),
            type_: Some("Warning".to_owned()),
            reason: Some(EventReason::DEVICES_UNAVAILABLE.as_str().to_owned()),
            action: Some("Explain".to_owned()),
            note: Some(note(pod, explanation)),
            regarding: Some(ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                namespace: Some(pod.namespace.clone()),
                name: Some(pod.name.clone()),
                uid: Some(pod.uid.clone()),
                ..ObjectReference::default()
            }),
            reporting_controller: Some(REPORTING_CONTROLLER.to_owned()),
            reporting_instance: Some(self.identity.clone()),
            ..Event::default()
        }
    }
}

/// The reasons, and the first remedy in the pod's namespace. Reasons give way to the remedy if both are too long.
fn note(pod: &PodFacts, explanation: &Explanation) -> String {
    let namespace = format!("{}/", pod.namespace);
    let mut remedies = explanation.remedies.iter().filter(|it| it.pod.starts_with(&namespace));
    let remedy = remedies.next().map(|it| format!(". {it}")).unwrap_or_default();
    let reason = explanation.pending_reason();
    format!("{}{remedy}", prefix(&reason, MAX_NOTE_BYTES.saturating_sub(remedy.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_due_at_once_and_with_a_later_message_after_the_interval() {
        let now = Instant::now();
        let mut schedule = Schedule::default();
        let uids = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        schedule.add(uids(&["b", "a"]), now);
        assert_eq!(schedule.next(), Some(("a".to_owned(), now)));
        schedule.due.remove("a");
        schedule.written.insert("a".to_owned(), now);
        // Two messages in the interval lead to one event at its end.
        let later = now + Duration::from_secs(1);
        schedule.add(uids(&["a"]), later);
        schedule.add(uids(&["a"]), later + Duration::from_secs(1));
        schedule.due.remove("b");
        assert_eq!(schedule.next(), Some(("a".to_owned(), now + MIN_EVENT_INTERVAL)));
        schedule.due.remove("a");
        let much_later = now + MIN_EVENT_INTERVAL;
        schedule.add(uids(&["a"]), much_later);
        assert_eq!(schedule.next(), Some(("a".to_owned(), much_later)));
        assert_eq!(schedule.written.len(), 0, "old times are forgotten");
    }
}
