//! What discovery says in the log.

use windlass_core::{
    device::DeviceId,
    health::{Health, HealthState},
};

/// A device changed its health. The first good word about a device is no news: the reconciler sums up
/// what there is.
pub(super) fn health_changed(device: &DeviceId, from: HealthState, health: &Health) {
    let to = health.state;
    match health.trouble() {
        Some(trouble) => {
            let action = trouble.reason.action().map(tracing::field::display);
            tracing::warn!(%device, %from, %to, why = %trouble, action, "health changed");
        }
        None if from == HealthState::Unknown => {
            tracing::debug!(%device, %from, %to, "health changed");
        }
        None => tracing::info!(%device, %from, %to, "health changed"),
    }
}
