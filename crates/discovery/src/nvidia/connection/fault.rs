//! Faults that the driver reports of its own accord.

use tokio::time::Instant;
use windlass_config::{HealthPolicy, UnlistedXids};
use windlass_core::{
    device::DeviceId,
    health::{Observation, Reason, Verdict, judge_xid},
};
use windlass_nvml::{Event, EventKind, NvmlError};

use super::{super::known::Known, Connection};

/// The XID of a memory error that only its own program met; the errors are counted all the same.
const CONTAINED: u64 = 94;

/// The XID of a double-bit ECC error.
const DOUBLE_BIT_ECC: u64 = 48;

impl Connection {
    pub(super) fn take_event(&mut self, event: Result<Event, NvmlError>, known: &mut Known) {
        match event {
            Ok(event) => self.take_fault(event, known),
            Err(error) => {
                // Which GPU broke the wait is not told: a set is made without those that are lost.
                tracing::warn!(%error, "waiting for NVML events failed");
                // A GPU that vanished may have moved the indices of others, which the count tells.
                (self.round.wants_gpus, self.round.wants_events) = (true, true);
                let now = Instant::now();
                // One that is on its way may have counted before that.
                self.round.is_outdated = self.round.question.is_open();
                self.ask_round(now);
                if !self.round.question.is_open() {
                    // A count that hangs tells nothing.
                    self.ask_wanted_gpus(known);
                }
                self.ask_events(now);
            }
        }
    }

    pub(super) fn take_fault(&mut self, event: Event, known: &mut Known) {
        let Some(slot) = self.slots.iter_mut().find(|slot| slot.is(&event)) else {
            if self.has_seen_every_gpu() {
                tracing::warn!(kind = ?event.kind, "an NVML event of a GPU that is not known");
                return self.ask_every_gpu(Instant::now(), known);
            }
            // Of a GPU whose first probe is on its way.
            return self.unmatched.push(event);
        };
        let fault = match event.kind {
            EventKind::Xid(code) => {
                slot.contained |= code == CONTAINED;
                let meaning = judge_xid(code).1;
                if !counts(&self.policy, code) {
                    let device = slot.ids.first().map(DeviceId::as_str);
                    tracing::info!(device, xid = code, meaning, "an XID that does not count");
                    return;
                }
                Observation::Fault(Reason::Xid(code), meaning.to_owned())
            }
            // The driver logs this as an XID too, and the operator's word on that holds here.
            EventKind::DoubleBitEcc if !counts(&self.policy, DOUBLE_BIT_ECC) => return,
            EventKind::DoubleBitEcc => {
                let detail = "memory that could not be corrected".to_owned();
                Observation::Fault(Reason::DoubleBitEcc, detail)
            }
            EventKind::Other(_) => return,
        };
        for id in slot.concerned(&event) {
            known.observe(&id, &fault);
        }
    }

    /// What errors that are only counted come to. Whether they were confined to one program is not
    /// told, so they count as an error that was not, and as the operator wants that to.
    pub(super) fn uncorrected(&self, errors: u64) -> Option<Observation> {
        let detail = format!("{errors} since the last look");
        counts(&self.policy, DOUBLE_BIT_ECC)
            .then_some(Observation::Fault(Reason::UncorrectedEcc, detail))
    }
}

/// Whether an XID counts: the operator's word on the code, then on all codes, then the catalogue's.
/// A code on both lists counts, as with NVIDIA's plugin.
fn counts(policy: &HealthPolicy, code: u64) -> bool {
    let named = policy.counted_xids.contains(&code);
    let unnamed = !policy.ignored_xids.contains(&code);
    named
        || unnamed
            && match policy.unlisted_xids {
                UnlistedXids::Judged => judge_xid(code).0 == Verdict::Critical,
                UnlistedXids::Ignored => false,
                UnlistedXids::Counted => true,
            }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks which of a critical, a program's and an unknown XID count.
    fn check(ignored: &[u64], counted: &[u64], unlisted: UnlistedXids, expected: [bool; 3]) {
        let policy = HealthPolicy {
            ignored_xids: ignored.iter().copied().collect(),
            counted_xids: counted.iter().copied().collect(),
            unlisted_xids: unlisted,
            ..HealthPolicy::default()
        };
        let seen = [79, 13, 9_999].map(|code| counts(&policy, code));
        assert_eq!(seen, expected, "-{ignored:?} +{counted:?} {unlisted:?}");
    }

    #[test]
    fn the_operators_word_on_a_code_goes_before_the_one_on_all_and_that_before_the_catalogue() {
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
