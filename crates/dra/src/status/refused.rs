//! Reports that the API server refused. Each is retried after a growing pause, and does not delay others: a starting
//! API server may refuse valid reports for a moment.

use std::collections::BTreeMap;

use tokio::time::{Duration, Instant, sleep_until};
use windlass_host::or_pending;

use super::{
    ClaimReport,
    document::{DeviceKey, DeviceReport, is_same},
};

/// Refused reports by the claim's UID.
#[derive(Debug, Default)]
pub(super) struct RefusedReports(BTreeMap<String, RefusedReport>);

#[derive(Debug)]
struct RefusedReport {
    devices: BTreeMap<DeviceKey, DeviceReport>,
    reason: String,
    /// Number of consecutive refusals.
    refusal_count: u32,
    retry_at: Instant,
}

// === impl RefusedReports ===

impl RefusedReports {
    /// Records a refusal. A repeated reason is logged once.
    pub(super) fn record(
        &mut self,
        uid: String,
        claim: ClaimReport,
        reason: String,
        retry_delay: impl FnOnce(u32) -> Duration,
    ) {
        let ClaimReport { reference, devices } = claim;
        let previous = self.0.remove(&uid);
        if previous.as_ref().is_none_or(|refused| refused.reason != reason) {
            tracing::error!(claim = %reference, error = reason, "claim status refused by the API server");
        }
        let refusal_count = previous.map_or(0, |refused| refused.refusal_count).saturating_add(1);
        let retry_at = Instant::now() + retry_delay(refusal_count);
        self.0.insert(uid, RefusedReport { devices, reason, refusal_count, retry_at });
    }

    pub(super) fn remove(&mut self, uid: &str) {
        self.0.remove(uid);
    }

    /// Drops the reports of all other claims.
    pub(super) fn retain(&mut self, is_kept: impl Fn(&str) -> bool) {
        self.0.retain(|uid, _| is_kept(uid));
    }

    /// True if the same report was refused and its retry is not due yet.
    pub(super) fn is_backing_off(
        &self,
        uid: &str,
        devices: &BTreeMap<DeviceKey, DeviceReport>,
        now: Instant,
    ) -> bool {
        let refusal = self.0.get(uid).filter(|refused| now < refused.retry_at);
        refusal.is_some_and(|refusal| {
            refusal.devices.len() == devices.len() && is_same(&refusal.devices, devices)
        })
    }

    /// Waits until the first of the reports that wait at `now` is due.
    pub(super) async fn wait_until_due(&self, now: Instant) {
        let retries =
            self.0.values().map(|refused| refused.retry_at).filter(|retry_at| now < *retry_at);
        or_pending(retries.min().map(sleep_until)).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;
    use windlass_allocations::ledger::ClaimRef;

    use super::*;

    fn claim() -> ClaimReport {
        let [namespace, name, uid] = ["ns", "c", "u"].map(ToOwned::to_owned);
        ClaimReport { reference: ClaimRef { namespace, name, uid }, devices: BTreeMap::new() }
    }

    fn waits(refused: &RefusedReports, uid: &str) -> bool {
        refused.is_backing_off(uid, &BTreeMap::new(), Instant::now())
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_report_is_retried_after_a_growing_pause() {
        let mut refused = RefusedReports::default();
        let retry_delay = |times| Duration::from_secs(u64::from(times));
        for seconds in 1..4 {
            refused.record("u".to_owned(), claim(), "forbidden".to_owned(), retry_delay);
            let start = Instant::now();
            assert!(waits(&refused, "u") && !waits(&refused, "v"));
            refused.wait_until_due(start).await;
            assert_eq!(start.elapsed().as_secs(), seconds);
            assert!(!waits(&refused, "u"), "it is due");
        }
        refused.remove("u");
        refused.record("u".to_owned(), claim(), "forbidden".to_owned(), retry_delay);
        advance(Duration::from_secs(1)).await;
        assert!(!waits(&refused, "u"), "the pause starts again at one second");
    }
}
