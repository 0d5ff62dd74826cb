//! Identity check of a programmable device after its preparation.

use tokio::time::{Duration, sleep};
use windlass_discovery::{FpgaIdentity, IdentityMismatch};
use windlass_host::{blocking, deadline};

use super::steps::StepContext;

/// Time limit for a board to report its identity. After a reset the driver first has to read the name of the shell from
/// the board.
const IDENTITY_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause between checks.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Checks the device until it has the required identity, up to the remaining time.
pub(super) async fn verify(
    context: &StepContext,
    identity: &FpgaIdentity,
    remaining: Duration,
) -> Result<(), String> {
    let limit = IDENTITY_TIMEOUT.min(remaining);
    let mut last_error = "its identity is not readable".to_owned();
    let check_until_final = async {
        loop {
            match check(context, identity).await? {
                Err(IdentityMismatch::NoIdentity) => sleep(POLL_INTERVAL).await,
                Err(IdentityMismatch::NotReady(reason)) => {
                    last_error = format!("it is not ready, {reason}");
                    sleep(POLL_INTERVAL).await;
                }
                Err(IdentityMismatch::WrongIdentity(mismatch)) => {
                    return Err(format!("{mismatch}, after its steps were done"));
                }
                Ok(()) => return Ok(()),
            }
        }
    };
    match deadline::timeout(limit, check_until_final).await {
        Ok(outcome) => outcome,
        Err(_) => Err(format!("{last_error}, {limit:.1?} after its steps were done")),
    }
}

async fn check(
    context: &StepContext,
    identity: &FpgaIdentity,
) -> Result<Result<(), IdentityMismatch>, String> {
    let (host, identity) = (context.host.clone(), identity.clone());
    let permit = context.verify_permit.clone().try_acquire_owned();
    let permit = permit.map_err(|_| "an earlier identity check has not returned yet".to_owned())?;
    let check = move || {
        let _permit = permit;
        identity.check(&host)
    };
    Ok(blocking(check).await)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;
    use tokio::sync::{Semaphore, mpsc, watch};
    use windlass_config::{FpgaRules, HostPaths};
    use windlass_core::{
        attribute::{AttributeName, AttributeValue},
        device::{Device, DeviceKind, SourceName},
    };
    use windlass_discovery::mig;
    use windlass_host::{Host, nvidia_smi::NvidiaSmi};

    use super::*;
    use crate::cleanup::{overwrite::Scrubber, plan::CleanupPlan};

    #[tokio::test(start_paused = true)]
    async fn a_board_without_an_identity_is_checked_until_the_timeout() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let id = "fpga-0000-3b-00-0".parse().expect("an id");
        let attributes = [("shell", "u250"), ("shellTimestamp", "1")].map(|(name, text)| {
            (AttributeName::new("amd.com", name), AttributeValue::string(text))
        });
        let device = Device::new(id, DeviceKind::Fpga, SourceName::FPGA, Timestamp::UNIX_EPOCH);
        let board = Device { attributes: attributes.into(), ..device };
        let identity = FpgaIdentity::for_device(&FpgaRules::default(), &board).expect("filled in");
        let source_channels = (mpsc::channel(1).0, mig::NvmlShutdownHandle::new().0);
        let smi = NvidiaSmi::new(&HostPaths::default().roots());
        let context = StepContext {
            device: board.id,
            plan: CleanupPlan::default(),
            host: Host::new(root.path(), "/"),
            write_permit: Arc::new(Semaphore::new(1)),
            verify_permit: Arc::new(Semaphore::new(1)),
            mig: mig::channel(Duration::MAX, watch::channel(None).1, smi, source_channels).0,
            scrubber: Scrubber::new(&HostPaths::default()),
        };
        let outcome = verify(&context, &identity.expect("it has an identity"), Duration::MAX).await;
        assert_eq!(
            outcome.expect_err("no such board"),
            "its identity is not readable, 5.0s after its steps were done"
        );
    }
}
