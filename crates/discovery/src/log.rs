//! What discovery says in the log.

use windlass_core::{
    device::{DeviceId, SourceName},
    health::{Health, HealthState},
    inventory::SourceState,
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

/// A source says something else than before. Only a failure is told: what there is, the reconciler sums up.
pub(super) fn source_changed(source: &SourceName, state: &SourceState) {
    if let SourceState::Failing(why) = state {
        tracing::warn!(%source, why, "a source fails: its devices stay as they are");
    }
}
