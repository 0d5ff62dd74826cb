//! Faults that the driver reports of its own accord.

use tokio::time::Instant;
use windlass_core::{
    device::DeviceId,
    health::{Observation, Reason, Verdict, judge_xid},
};
use windlass_nvml::{Event, EventKind, NvmlError};

use super::{super::known::Known, Connection};

impl Connection {
    pub(super) fn take_event(&mut self, event: Result<Event, NvmlError>, known: &mut Known) {
        match event {
            Ok(event) => self.take_fault(event, known),
            Err(error) => {
                // Which GPU broke the wait is not told: a set is made without those that are lost.
                tracing::warn!(%error, "waiting for NVML events failed");
                self.round.wants_events = true;
                let now = Instant::now();
                self.ask_every_gpu(now, known);
                self.ask_events(now);
            }
        }
    }

    pub(super) fn take_fault(&mut self, event: Event, known: &mut Known) {
        let Some(slot) = self.slots.iter().find(|slot| slot.is(&event)) else {
            if self.has_seen_every_gpu() {
                tracing::warn!(kind = ?event.kind, "an NVML event of a GPU that is not known");
                return self.ask_every_gpu(Instant::now(), known);
            }
            // Of a GPU whose first probe is on its way.
            return self.unmatched.push(event);
        };
        let fault = match event.kind {
            EventKind::Xid(code) => {
                let (counts, meaning) = self.judge(code);
                if !counts {
                    let device = slot.ids.first().map(DeviceId::as_str);
                    tracing::info!(device, xid = code, meaning, "an XID that does not count");
                    return;
                }
                Observation::Fault(Reason::Xid(code), meaning.to_owned())
            }
            EventKind::DoubleBitEcc => {
                let detail = "memory that could not be corrected".to_owned();
                Observation::Fault(Reason::DoubleBitEcc, detail)
            }
            EventKind::Other(_) => return,
        };
        for id in &slot.ids {
            known.observe(id, &fault);
        }
    }

    /// Whether an XID counts: the operator's word, then the catalogue's.
    fn judge(&self, code: u64) -> (bool, &'static str) {
        let (verdict, meaning) = judge_xid(code);
        let counts = self.policy.counted_xids.contains(&code)
            || (verdict == Verdict::Critical && !self.policy.ignored_xids.contains(&code));
        (counts, meaning)
    }
}
