//! Reasons why devices are withheld from new pods, as values of a metric's label. `/devices` has the full sentences.

use windlass_allocations::ledger::Ledger;
use windlass_core::{device::Device, health::HealthState};
use windlass_resources::{DeviceOffer, NodeState, obstacle::ObstacleKind};

/// Reason why neither pods nor claims can get a device that the configuration offers. `None` if they can get it, or if
/// the configuration does not mention it.
pub(super) fn reason(
    state: &NodeState,
    ledger: &Ledger,
    offering: Option<&DeviceOffer>,
    device: &Device,
) -> Option<&'static str> {
    let id = &device.id;
    // A drive that the host withholds is in the inventory only for its location in the topology.
    if device.kind.is_storage() && device.withheld.is_some() {
        return None;
    }
    if state.withheld.contains_key(id) {
        return Some(if device.withheld.is_some() { "host" } else { "configuration" });
    }
    let is_for_claims = state.is_claimable(id);
    if offering.is_none() && !is_for_claims {
        return state.unclaimable_reason(id).map(|_| "configuration");
    }
    if is_for_claims || offering.is_some_and(|offering| offering.obstacle.is_some()) {
        let pod_reason =
            || offering?.obstacle.as_ref().map(|_| external_reason(state, ledger, device));
        return device_reason(state, device).or_else(pod_reason);
    }
    None
}

/// Reason in the device itself.
fn device_reason(state: &NodeState, device: &Device) -> Option<&'static str> {
    let id = &device.id;
    let node = || state.absences.contains_key(id).then_some(ObstacleKind::DeviceNode.as_str());
    match device.health.state {
        HealthState::Unhealthy => Some("unhealthy"),
        HealthState::Unknown => Some("unknown"),
        HealthState::Healthy if state.failed_cleanups.contains_key(id) => Some("cleanup-failed"),
        HealthState::Healthy if state.pending_cleanups.contains_key(id) => Some("cleanup"),
        HealthState::Healthy => {
            state.obstacle(device).map(|obstacle| obstacle.kind.as_str()).or_else(node)
        }
    }
}

/// Reason outside the device: a holder, or else the agent.
fn external_reason(state: &NodeState, ledger: &Ledger, device: &Device) -> &'static str {
    let overlap = state.overlaps.overlap(&device.id);
    let is_held =
        ledger.claim_holder(&overlap).is_some() || ledger.container_holder(&overlap).is_some();
    if is_held { "held" } else { "other" }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use windlass_allocations::ledger::{ClaimRef, ClaimUse, SharedLedger};
    use windlass_core::{
        device::{DeviceId, DeviceKind, SourceName},
        health::Health,
    };
    use windlass_resources::obstacle::Obstacle;

    use super::*;

    fn id() -> DeviceId {
        "GPU-a".parse().expect("an id")
    }

    /// Reason of a device with this health and obstacle, after a change of the state, the ledger or the device.
    fn reason_of(
        health: HealthState,
        obstacle: Option<&str>,
        change: impl FnOnce(&mut NodeState, &SharedLedger, &mut Device),
    ) -> Option<&'static str> {
        let (mut state, ledger) = (NodeState::default(), SharedLedger::default());
        let now = Timestamp::UNIX_EPOCH;
        let mut device = Device::new(id(), DeviceKind::Gpu, SourceName::NVIDIA, now);
        device.health = Health { state: health, ..Health::unknown(now) };
        change(&mut state, &ledger, &mut device);
        let offering = DeviceOffer {
            resource: None,
            shared: None,
            enforcement: None,
            obstacle: obstacle.map(str::to_owned),
        };
        let ledger = ledger.watch().borrow().clone();
        reason(&state, &ledger, Some(&offering), &device)
    }

    #[test]
    fn each_reason_has_a_label_value_and_one_in_the_device_comes_first() {
        use HealthState::{Healthy, Unhealthy, Unknown};
        let sentence = Some("a sentence");
        assert_eq!(reason_of(Healthy, None, |_, _, _| {}), None);
        assert_eq!(reason_of(Healthy, sentence, |_, _, _| {}), Some("other"));
        assert_eq!(reason_of(Unhealthy, sentence, |_, _, _| {}), Some("unhealthy"));
        assert_eq!(reason_of(Unknown, sentence, |_, _, _| {}), Some("unknown"));
        let excluded = |state: &mut NodeState, _: &SharedLedger, _: &mut Device| {
            state.withheld.insert(id(), "excluded".to_owned());
        };
        assert_eq!(reason_of(Unhealthy, sentence, excluded), Some("configuration"));
        let unbound = |state: &mut NodeState, ledger: &SharedLedger, device: &mut Device| {
            excluded(state, ledger, device);
            device.withheld = Some("no driver".to_owned());
        };
        assert_eq!(reason_of(Healthy, sentence, unbound), Some("host"));
        let drive = |state: &mut NodeState, ledger: &SharedLedger, device: &mut Device| {
            unbound(state, ledger, device);
            device.kind = DeviceKind::Nvme;
        };
        assert_eq!(reason_of(Healthy, sentence, drive), None);
        let cleaned = |state: &mut NodeState, _: &SharedLedger, _: &mut Device| {
            state.pending_cleanups.insert(id(), "cleaning");
        };
        assert_eq!(reason_of(Healthy, sentence, cleaned), Some("cleanup"));
        let leased = |state: &mut NodeState, _: &SharedLedger, _: &mut Device| {
            let reason = "another node holds it".to_owned();
            state.claim_obstacles.insert(id(), Obstacle { kind: ObstacleKind::Lease, reason });
        };
        assert_eq!(reason_of(Healthy, sentence, leased), Some("lease"));
        let claimed = |_: &mut NodeState, ledger: &SharedLedger, _: &mut Device| {
            let (namespace, name, uid) = ("ns".to_owned(), "c".to_owned(), "u".to_owned());
            ledger
                .restore_claim(&ClaimRef { namespace, name, uid }, [(&id(), ClaimUse::Exclusive)]);
        };
        assert_eq!(reason_of(Healthy, sentence, claimed), Some("held"));
    }
}
