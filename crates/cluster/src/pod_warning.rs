//! A warning about a pod, as an event.

use jiff::Timestamp;
use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use windlass_core::event_reason::{EventReason, MAX_NOTE_BYTES};
use windlass_host::abbreviate::prefix;

use super::{
    BoundPod,
    events::{REPORTING_CONTROLLER, reporting_instance},
    request_backoff::hash,
};

/// A warning about a pod, for its event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodWarning<'a> {
    /// The reason.
    pub reason: EventReason,
    /// The action as one word, such as `Evict`.
    pub action: &'static str,
    /// The text.
    pub note: &'a str,
    /// Time of the warning.
    pub at: Timestamp,
}

// === impl PodWarning ===

impl PodWarning<'_> {
    pub(crate) fn event(&self, pod: &BoundPod, node: &str) -> Event {
        // The name is a hash of the content, so a retry after a lost answer writes no second event.
        let content = (&pod.uid, self.reason.as_str(), self.note, self.at.as_nanosecond());
        Event {
            metadata: ObjectMeta {
                name: Some(format!("windlass-{:016x}", hash(&content))),
                namespace: Some(pod.namespace.clone()),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(self.at)),
            type_: Some("Warning".to_owned()),
            reason: Some(self.reason.as_str().to_owned()),
            action: Some(self.action.to_owned()),
            note: Some(prefix(self.note, MAX_NOTE_BYTES).to_owned()),
            regarding: Some(ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                namespace: Some(pod.namespace.clone()),
                name: Some(pod.name.clone()),
                uid: Some(pod.uid.clone()),
                ..ObjectReference::default()
            }),
            reporting_controller: Some(REPORTING_CONTROLLER.to_owned()),
            reporting_instance: Some(reporting_instance(node)),
            ..Event::default()
        }
    }
}
