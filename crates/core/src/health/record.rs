//! Health of a device as stored for the next agent process.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Failure, HealthState};

/// Health of a device, with the failures that decide the end of its quiet period: the time without failures before it
/// is healthy again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthRecord {
    /// Last state.
    pub state: HealthState,
    /// Start of the state.
    pub since: Timestamp,
    /// Past failures; newest last.
    #[serde(rename = "evidence")]
    pub failures: Vec<Failure>,
    /// Time of the last failure.
    #[serde(rename = "lastTrouble")]
    pub last_failure: Option<Timestamp>,
    /// Number of failures soon after a recovery. Each doubles the quiet period, up to a bound.
    pub relapses: u32,
}

// === impl HealthRecord ===

impl HealthRecord {
    /// The record after a reboot, which resets every device: past failures stay, the quiet period ends.
    #[must_use]
    pub fn into_history(self) -> Self {
        Self { state: HealthState::Unknown, last_failure: None, relapses: 0, ..self }
    }
}
