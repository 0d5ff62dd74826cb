//! Events: the differences between two views of a node.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::document::{DeviceView, Event, EventKind, Health, HolderView, NodeView};

/// Appends the events between two views of a node. `None` is an absent node.
pub(crate) fn append_changes(
    time: Timestamp,
    before: Option<&NodeView>,
    after: Option<&NodeView>,
    events: &mut Vec<Event>,
) {
    let event = |node: &NodeView, kind, text: String| Event {
        time,
        node: node.name.clone(),
        device: None,
        pod: None,
        kind,
        text,
    };
    match (before, after) {
        (None, None) => {}
        (None, Some(node)) => {
            events.push(event(node, EventKind::Appeared, devices(node.devices.len())));
        }
        (Some(node), None) => {
            events.push(event(node, EventKind::Gone, devices(node.devices.len())));
        }
        (Some(before), Some(after)) => {
            let device_event = |device: &DeviceView, pod: Option<&str>, kind, text: String| Event {
                device: Some(device.id.clone()),
                pod: pod.map(str::to_owned),
                ..event(after, kind, text)
            };
            let previous = by_id(before);
            let current = by_id(after);
            for device in &after.devices {
                match previous.get(device.id.as_str()) {
                    None => {
                        events.push(device_event(
                            device,
                            None,
                            EventKind::Appeared,
                            description(device),
                        ));
                    }
                    Some(old_device) => {
                        compare_health(old_device, device, |kind, text| {
                            events.push(device_event(device, None, kind, text));
                        });
                        compare_holders(old_device, device, |pod, kind, text| {
                            events.push(device_event(device, Some(pod), kind, text));
                        });
                    }
                }
            }
            for device in before.devices.iter().filter(|it| !current.contains_key(it.id.as_str())) {
                events.push(device_event(device, None, EventKind::Gone, description(device)));
            }
        }
    }
}

fn by_id(node: &NodeView) -> BTreeMap<&str, &DeviceView> {
    node.devices.iter().map(|device| (device.id.as_str(), device)).collect()
}

fn devices(count: usize) -> String {
    if count == 1 { "1 device".to_owned() } else { format!("{count} devices") }
}

fn description(device: &DeviceView) -> String {
    if device.product.is_empty() { device.kind.clone() } else { device.product.clone() }
}

fn compare_health(
    before: &DeviceView,
    after: &DeviceView,
    mut report: impl FnMut(EventKind, String),
) {
    if (before.health, &before.reason) == (after.health, &after.reason) {
        return;
    }
    let reason = after.reason.clone();
    match after.health {
        Health::Healthy if before.health == Health::Healthy => {}
        Health::Healthy => report(EventKind::Recovery, before.reason.clone().unwrap_or_default()),
        Health::Unhealthy => report(EventKind::Fault, reason.unwrap_or_default()),
        Health::Unknown => {
            let reason = reason.unwrap_or_else(|| "its health is unknown".to_owned());
            report(EventKind::Fault, reason);
        }
    }
}

fn compare_holders(
    before: &DeviceView,
    after: &DeviceView,
    mut report: impl FnMut(&str, EventKind, String),
) {
    let is_one_of = |holders: &[HolderView], holder: &HolderView| {
        holders.iter().any(|it| it.name() == holder.name())
    };
    for holder in before.holders.iter().filter(|it| !is_one_of(&after.holders, it)) {
        report(holder.name(), EventKind::Ended, holder.amounts());
    }
    for holder in after.holders.iter().filter(|it| !is_one_of(&before.holders, it)) {
        report(holder.name(), EventKind::Placed, holder.amounts());
    }
}

// === impl HolderView ===

impl HolderView {
    /// Name of the holder: the claim, which several pods may use, else the pod.
    fn name(&self) -> &str {
        self.claim.as_deref().or(self.pod.as_deref()).unwrap_or("unknown")
    }

    fn amounts(&self) -> String {
        let memory = self.memory_bytes.map(|bytes| format!("{} MiB", bytes >> 20));
        let compute = self.compute.map(|part| format!("{:.0} %", part * 100.0));
        let parts: Vec<_> = memory.into_iter().chain(compute).collect();
        if parts.is_empty() { "whole device".to_owned() } else { parts.join(", ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(devices: Vec<DeviceView>) -> NodeView {
        NodeView { name: "a".to_owned(), devices, ..NodeView::default() }
    }

    fn gpu(id: &str) -> DeviceView {
        DeviceView { id: id.to_owned(), product: "H100".to_owned(), ..DeviceView::default() }
    }

    fn unhealthy(id: &str, reason: &str) -> DeviceView {
        let reason = Some(reason.to_owned());
        DeviceView { health: Health::Unhealthy, reason, ..gpu(id) }
    }

    fn held(id: &str, pods: &[&str]) -> DeviceView {
        let holder = |pod: &&str| HolderView {
            pod: Some((*pod).to_owned()),
            memory_bytes: Some(8 << 30),
            ..HolderView::default()
        };
        DeviceView { holders: pods.iter().map(holder).collect(), ..gpu(id) }
    }

    /// Each event as `kind device pod text`.
    #[expect(clippy::needless_pass_by_value, reason = "calls read better without a reference")]
    fn check(before: Option<NodeView>, after: Option<NodeView>, expected: &[&str]) {
        let mut events = Vec::new();
        append_changes(Timestamp::UNIX_EPOCH, before.as_ref(), after.as_ref(), &mut events);
        let line = |event: &Event| {
            let (device, pod) = (event.device.as_deref(), event.pod.as_deref());
            let words = [device.unwrap_or("-"), pod.unwrap_or("-"), &event.text];
            format!("{:?} {}", event.kind, words.join(" "))
        };
        let lines: Vec<_> = events.iter().map(line).collect();
        assert_eq!(lines, expected, "from {before:?} to {after:?}");
        assert!(events.iter().all(|event| event.node == "a"));
    }

    #[test]
    fn added_and_removed_nodes_and_devices_are_events() {
        check(None, Some(node(vec![gpu("1"), gpu("2")])), &["Appeared - - 2 devices"]);
        check(Some(node(vec![gpu("1")])), None, &["Gone - - 1 device"]);
        check(
            Some(node(vec![gpu("1")])),
            Some(node(vec![gpu("2")])),
            &["Appeared 2 - H100", "Gone 1 - H100"],
        );
    }

    #[test]
    fn a_fault_has_its_reason_and_a_recovery_has_the_previous_reason() {
        let (healthy, failed) = (node(vec![gpu("1")]), node(vec![unhealthy("1", "XID 79")]));
        check(Some(healthy.clone()), Some(failed.clone()), &["Fault 1 - XID 79"]);
        check(
            Some(failed.clone()),
            Some(node(vec![unhealthy("1", "XID 48")])),
            &["Fault 1 - XID 48"],
        );
        check(Some(failed.clone()), Some(failed.clone()), &[]);
        check(Some(failed), Some(healthy), &["Recovery 1 - XID 79"]);
        let unknown = DeviceView { health: Health::Unknown, ..gpu("1") };
        check(
            Some(node(vec![gpu("1")])),
            Some(node(vec![unknown])),
            &["Fault 1 - its health is unknown"],
        );
    }

    #[test]
    fn changes_of_holders_are_events_and_changes_of_use_are_not() {
        let (held_by_a, held_by_b) =
            (node(vec![held("1", &["x/a"])]), node(vec![held("1", &["x/b"])]));
        check(
            Some(held_by_a.clone()),
            Some(held_by_b),
            &["Ended 1 x/a 8192 MiB", "Placed 1 x/b 8192 MiB"],
        );
        let mut busy = held_by_a.clone();
        busy.devices[0].holders[0].memory_used_bytes = Some(1);
        busy.devices[0].utilization = Some(0.5);
        check(Some(held_by_a), Some(busy), &[]);
    }

    #[test]
    fn a_whole_device_is_distinguished_from_a_share() {
        let whole = HolderView { claim: Some("x/c".to_owned()), ..HolderView::default() };
        let after = node(vec![DeviceView { holders: vec![whole], ..gpu("1") }]);
        check(Some(node(vec![gpu("1")])), Some(after), &["Placed 1 x/c whole device"]);
    }
}
