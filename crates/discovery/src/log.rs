//! Log messages of discovery.

use windlass_core::{
    device::{DeviceId, SourceName},
    health::{Health, HealthState},
    inventory::SourceState,
};

/// Logs a health change. The first healthy state is debug only, since the reconciler logs a summary.
pub(super) fn health_changed(device: &DeviceId, from: HealthState, health: &Health) {
    let to = health.state;
    match health.failure() {
        Some(failure) => {
            let action = failure.reason.action().map(tracing::field::display);
            tracing::warn!(%device, %from, %to, why = %failure, action, "health changed");
        }
        None if from == HealthState::Unknown => {
            tracing::debug!(%device, %from, %to, "health changed");
        }
        None => tracing::info!(%device, %from, %to, "health changed"),
    }
}

/// Logs a failing source. The reconciler summarises the other states.
pub(super) fn source_changed(source: &SourceName, state: &SourceState) {
    if let SourceState::Failing(why) = state {
        tracing::warn!(%source, why, "device source failing: devices stay as last seen");
    }
}
