//! Wait for the MPS daemons of a claim's devices: until they serve, or until they have ended.

use tokio::time::{Duration, sleep};
use windlass_allocations::ledger::ClaimUse;
use windlass_core::device::DeviceId;
use windlass_host::{AGENT_ENDS, blocking, deadline};
use windlass_lifecycle::mps::MpsState;

use super::{super::record::PreparedClaim, environment::Environment};

/// Longest wait of one request. The daemon continues to start, and may serve at the kubelet's next request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Interval of checks for a daemon's end.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

// === impl Environment ===

impl Environment {
    /// Waits until the claim's daemons serve, and until no daemon is left on its exclusive devices: a daemon would lock
    /// out the claim's programs. The reconciler starts and stops daemons by the ledger.
    pub(super) async fn wait_for_daemons(&self, record: &PreparedClaim) -> Result<(), String> {
        for (device, usage) in record.uses() {
            if usage.needs_daemon() {
                self.wait_for_daemon(device).await?;
            } else if usage == ClaimUse::Exclusive
                || matches!(usage, ClaimUse::Portion(portion) if portion.is_whole())
            {
                self.wait_for_daemon_end(device).await?;
            }
        }
        Ok(())
    }

    async fn wait_for_daemon(&self, device: &DeviceId) -> Result<(), String> {
        let mut states = self.daemons.clone();
        let is_decided =
            |state: Option<&MpsState>| !matches!(state, None | Some(MpsState::Starting));
        let decided = states.wait_for(|states| is_decided(states.get(device)));
        let obstacle = match deadline::timeout(REQUEST_TIMEOUT, decided).await {
            Ok(Ok(states)) => states.get(device).and_then(MpsState::obstacle),
            Ok(Err(_)) => Some(AGENT_ENDS.to_owned()),
            Err(_) => MpsState::Starting.obstacle(),
        };
        obstacle.map_or(Ok(()), |reason| Err(format!("{device}: {reason}")))
    }

    async fn wait_for_daemon_end(&self, device: &DeviceId) -> Result<(), String> {
        let daemon_end = async {
            loop {
                let (folders, device) = (self.mps.clone(), device.clone());
                if !blocking(move || folders.has_record(&device)).await {
                    return;
                }
                sleep(POLL_INTERVAL).await;
            }
        };
        let daemon_end = deadline::timeout(REQUEST_TIMEOUT, daemon_end).await;
        daemon_end.map_err(|_| format!("{device}: the MPS daemon of earlier holders still runs"))
    }
}
