//! Event objects of the API server: a new event, or one more occurrence in a series of equal events.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        core::v1::ObjectReference,
        events::v1::{Event, EventSeries},
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use windlass_core::{device::DeviceId, event_reason::EventReason};

use super::{
    NAMESPACE, REPORTING_CONTROLLER,
    report::{Change, Report},
    reporting_instance,
};
use crate::request_backoff::hash;

/// Time in which an event may become a series. API servers delete events after an hour by default.
const SERIES_WINDOW: Duration = Duration::from_secs(60 * 60);

/// Recent events that may become series.
pub(super) struct Series {
    node: String,
    open_events: BTreeMap<(DeviceId, String), OpenEvent>,
}

/// An event that equal reports extend to a series.
struct OpenEvent {
    name: String,
    count: i32,
    last_observed: Timestamp,
}

/// Request for a report: a new event, or an update of an event's series.
#[derive(Debug)]
pub(super) enum EventWrite {
    Create(Box<Event>),
    UpdateSeries { name: String, series: EventSeries },
}

// === impl Series ===

impl Series {
    pub(super) fn new(node: &str) -> Self {
        Self { node: node.to_owned(), open_events: BTreeMap::new() }
    }

    pub(super) fn next(&mut self, report: &Report) -> EventWrite {
        let oldest = report.at.saturating_sub(SERIES_WINDOW).unwrap_or(Timestamp::MIN);
        self.open_events.retain(|_, event| event.last_observed >= oldest);
        let Some(event) = self.open_events.get(&key(report)) else {
            return EventWrite::Create(Box::new(self.event(report)));
        };
        let count = event.count.saturating_add(1);
        let series = EventSeries { count, last_observed_time: MicroTime(report.at) };
        EventWrite::UpdateSeries { name: event.name.clone(), series }
    }

    /// Records a written event.
    pub(super) fn record(&mut self, report: &Report, write: EventWrite) {
        let (name, count) = match write {
            EventWrite::Create(event) => (event.metadata.name.unwrap_or_default(), 1),
            EventWrite::UpdateSeries { name, series } => (name, series.count),
        };
        self.open_events.insert(key(report), OpenEvent { name, count, last_observed: report.at });
    }

    /// Removes an event that no longer exists.
    pub(super) fn remove(&mut self, report: &Report) {
        self.open_events.remove(&key(report));
    }

    fn event(&self, report: &Report) -> Event {
        let (kind, reason, action) = match report.change {
            Change::Unhealthy(_) => ("Warning", EventReason::DEVICE_UNHEALTHY, "Withhold"),
            Change::Recovered => ("Normal", EventReason::DEVICE_RECOVERED, "Offer"),
        };
        Event {
            metadata: ObjectMeta {
                name: Some(self.name(report)),
                namespace: Some(NAMESPACE.to_owned()),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(report.at)),
            type_: Some(kind.to_owned()),
            reason: Some(reason.as_str().to_owned()),
            action: Some(action.to_owned()),
            note: Some(report.note.clone()),
            regarding: Some(self.node_reference()),
            reporting_controller: Some(REPORTING_CONTROLLER.to_owned()),
            reporting_instance: Some(reporting_instance(&self.node)),
            ..Event::default()
        }
    }

    /// Name of a report's event: a hash of its content, so a retry after a lost answer writes no second event.
    fn name(&self, report: &Report) -> String {
        let content = (&self.node, &report.device, &report.note, report.at.as_nanosecond());
        format!("windlass-{:016x}", hash(&content))
    }

    /// Reference to the Node with its name as UID, as the kubelet writes it and `kubectl describe node` expects it.
    fn node_reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(self.node.clone()),
            uid: Some(self.node.clone()),
            ..ObjectReference::default()
        }
    }
}

fn key(report: &Report) -> (DeviceId, String) {
    (report.device.clone(), report.note.clone())
}

// === impl EventWrite ===

impl EventWrite {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Create(event) => event.metadata.name.as_deref().unwrap_or_default(),
            Self::UpdateSeries { name, .. } => name,
        }
    }

    pub(super) fn is_series_update(&self) -> bool {
        matches!(self, Self::UpdateSeries { .. })
    }
}
