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
//! A pod gets one event when kube-scheduler first finds no node for it, and at most one in ten minutes when
//! kube-scheduler's message changes. Nothing is written by a timer. Two replicas, or a restarted one, write the same
//! event once: its name is a digest of the pod and of kube-scheduler's message.

use std::{collections::HashMap, sync::Arc, time::Duration};

use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, api::PostParams};
use tokio::{
    sync::mpsc::{self, UnboundedReceiver},
    time::{Instant, sleep},
};
use windlass_core::{event_reason::EventReason, name::digest};
use windlass_host::{abbreviate::prefix, causes, clock::Clock, shared::Shared};

use crate::{explanation::Explanation, facts::PodFacts, index::Index};

/// Minimum time between two events of a pod.
const MIN_EVENT_INTERVAL: Duration = Duration::from_secs(600);
/// Pause after each event: of many pending pods, ten per second get theirs.
const WRITE_PAUSE: Duration = Duration::from_millis(100);
/// Limit of the API server for a note, in bytes (`NoteLengthLimit` in pkg/apis/events/validation).
const MAX_NOTE_BYTES: usize = 1024;
/// Limit of the API server for the name of the writer, in bytes (same package).
const MAX_INSTANCE_BYTES: usize = 128;
const REPORTING_CONTROLLER: &str = "windlass.dev/extender";

/// Writes events about pending pods.
pub(crate) struct PendingEvents {
    index: Arc<Shared<Index>>,
    /// UIDs from the index.
    unschedulable: UnboundedReceiver<String>,
    client: kube::Client,
    clock: Clock,
    /// Name of this replica in the events.
    identity: String,
}

// === impl PendingEvents ===

impl PendingEvents {
    /// For an index that has not been read yet.
    pub(crate) fn new(
        index: Arc<Shared<Index>>,
        client: kube::Client,
        clock: Clock,
        identity: &str,
    ) -> Self {
        let (sender, unschedulable) = mpsc::unbounded_channel();
        index.with_lock(|index| index.report_unschedulable(sender));
        let identity = prefix(identity, MAX_INSTANCE_BYTES).to_owned();
        Self { index, unschedulable, client, clock, identity }
    }

    /// Writes events for the pods that the index reports. Never returns.
    pub(crate) async fn run(mut self) {
        let (mut last_events, mut is_failing) = (HashMap::<String, Instant>::new(), false);
        while let Some(uid) = self.unschedulable.recv().await {
            let now = Instant::now();
            last_events.retain(|_, time| now - *time < MIN_EVENT_INTERVAL);
            if last_events.contains_key(&uid) {
                continue;
            }
            let Some(pod) = self.index.with_lock(|index| index.pending_pod(&uid)) else { continue };
            let explanation = Explanation::in_steps(&self.index, &pod).await;
            // The pod fits now, or something else keeps it from the node, of which kube-scheduler's own event tells.
            if !explanation.fitting.is_empty() {
                continue;
            }
            last_events.insert(uid, now);
            match self.write(&self.event(&pod, &explanation)).await {
                Ok(()) => is_failing = false,
                Err(error) if !is_failing => {
                    is_failing = true;
                    let (pod, error) = (pod.namespaced_name(), causes(&error));
                    tracing::warn!(pod, error, "events of pending pods cannot be written");
                }
                Err(_) => {}
            }
            sleep(WRITE_PAUSE).await;
        }
    }

    async fn write(&self, event: &Event) -> kube::Result<()> {
        let namespace = event.metadata.namespace.as_deref().unwrap_or_default();
        let api = Api::namespaced(self.client.clone(), namespace);
        match api.create(&PostParams::default(), event).await {
            // Written by another replica, or before a restart.
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
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
            note: Some(note(explanation)),
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

/// The reasons and the first remedy. Reasons give way to the remedy if both are too long.
fn note(explanation: &Explanation) -> String {
    let remedy = explanation.remedies.first().map(|it| format!(". {it}")).unwrap_or_default();
    let reason = explanation.pending_reason();
    format!("{}{remedy}", prefix(&reason, MAX_NOTE_BYTES.saturating_sub(remedy.len())))
}
