//! Handling of messages from the event thread: faults that the driver reports, and failed waits.

use tokio::time::Instant;
use windlass_config::{HealthPolicy, UnlistedXids};
use windlass_core::{
    device::DeviceId,
    health::{Observation, Reason, Verdict, judge_xid},
};
use windlass_nvml::{Event, EventKind};

use super::{
    super::{events::EventMessage, tracked::TrackedDevices},
    Connection,
};

/// XID of a contained memory error. The counters of uncorrected errors include it.
const CONTAINED_MEMORY_ERROR: u64 = 94;

/// The XID of a double-bit ECC error.
const DOUBLE_BIT_ECC: u64 = 48;

impl Connection {
    pub(super) fn handle_message(&mut self, message: EventMessage, tracked: &mut TrackedDevices) {
        match message {
            EventMessage::Event(event) => self.apply_fault(event, tracked),
            EventMessage::Paused => self.probe_unwatched(tracked),
            EventMessage::Failed(error) => {
                // NVML does not name the GPU at fault. A new event set leaves out lost GPUs.
                tracing::warn!(%error, "NVML event wait failed, registering again: probes find faults meanwhile");
                // A vanished GPU may shift the indices of others, so the GPUs are counted again.
                (self.driver_check.probe_all, self.driver_check.needs_event_set) = (true, true);
                let now = Instant::now();
                // A pending count may be older than the failure.
                self.driver_check.is_outdated = self.driver_check.call.is_running();
                self.start_driver_check(now);
                if !self.driver_check.call.is_running() {
                    // The count hangs, so the GPUs are probed without it.
                    self.probe_all_if_requested(tracked);
                }
                self.renew_event_set(now);
            }
        }
    }

    pub(super) fn apply_fault(&mut self, event: Event, tracked: &mut TrackedDevices) {
        let Some(slot) = self.slots.iter_mut().find(|slot| slot.matches(&event)) else {
            if self.has_seen_every_gpu() {
                tracing::warn!(kind = ?event.kind, "NVML event of an unknown GPU: probing all");
                return self.probe_every_gpu(Instant::now(), tracked);
            }
            // The GPU's first probe is pending.
            return self.unmatched.push(event);
        };
        let fault = match event.kind {
            EventKind::Xid(code) => {
                slot.errors.contained |= code == CONTAINED_MEMORY_ERROR;
                let meaning = judge_xid(code).1;
                if !counts_xid(&self.policy.health, code) {
                    let device = slot.ids.first().map(DeviceId::as_str);
                    tracing::info!(device, xid = code, meaning, "XID ignored by policy");
                    return;
                }
                Observation::Fault(Reason::Xid(code), meaning.to_owned())
            }
            // The driver also reports this as an XID, so that XID's policy applies.
            EventKind::DoubleBitEcc if !counts_xid(&self.policy.health, DOUBLE_BIT_ECC) => return,
            EventKind::DoubleBitEcc => {
                let detail = "memory that could not be corrected".to_owned();
                Observation::Fault(Reason::DoubleBitEcc, detail)
            }
            EventKind::Other(_) => return,
        };
        for id in slot.affected_devices(&event) {
            tracked.observe(&id, &fault);
        }
    }

    /// Fault for uncorrected errors that the counters show. NVML does not report whether they were contained, so
    /// the policy of the double-bit XID applies.
    pub(super) fn uncorrected_fault(&self, errors: u64) -> Option<Observation> {
        let detail = format!("{errors} since the last check");
        counts_xid(&self.policy.health, DOUBLE_BIT_ECC)
            .then_some(Observation::Fault(Reason::UncorrectedEcc, detail))
    }
}

/// True if the policy counts an XID: by its lists of codes, else by its rule for unlisted codes. A code on both lists
/// counts, as in NVIDIA's plugin.
fn counts_xid(policy: &HealthPolicy, code: u64) -> bool {
    let is_counted = policy.counted_xids.contains(&code);
    let is_ignored = policy.ignored_xids.contains(&code);
    is_counted
        || !is_ignored
            && match policy.unlisted_xids {
                UnlistedXids::Judged => judge_xid(code).0 == Verdict::Critical,
                UnlistedXids::Ignored => false,
                UnlistedXids::Counted => true,
            }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the policy for a critical XID, an application XID and an unknown one.
    fn check(ignored: &[u64], counted: &[u64], unlisted: UnlistedXids, expected: [bool; 3]) {
        let policy = HealthPolicy {
            ignored_xids: ignored.iter().copied().collect(),
            counted_xids: counted.iter().copied().collect(),
            unlisted_xids: unlisted,
            ..HealthPolicy::default()
        };
        let actual = [79, 13, 9_999].map(|code| counts_xid(&policy, code));
        assert_eq!(actual, expected, "-{ignored:?} +{counted:?} {unlisted:?}");
    }

    #[test]
    fn policy_for_one_xid_precedes_policy_for_all_and_the_catalogue() {
        use UnlistedXids::{Counted, Ignored, Judged};
        check(&[], &[], Judged, [true, false, true]);
        check(&[79], &[13], Judged, [false, true, true]);
        check(&[79], &[79], Judged, [true, false, true]);
        check(&[], &[], Ignored, [false, false, false]);
        check(&[], &[79], Ignored, [true, false, false]);
        check(&[79], &[13], Ignored, [false, true, false]);
        check(&[], &[], Counted, [true, true, true]);
        check(&[79], &[], Counted, [false, true, true]);
    }
}
