//! Health of a device as stored for the next agent.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Evidence, HealthState};

/// Health of a device with the state of its quiet period.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthRecord {
    /// Last state.
    pub state: HealthState,
    /// Start of the state.
    pub since: Timestamp,
    /// Past troubles; newest last.
    pub evidence: Vec<Evidence>,
    /// Time of the last trouble.
    pub last_trouble: Option<Timestamp>,
    /// Number of quick relapses after a recovery.
    pub relapses: u32,
}

// === impl HealthRecord ===

impl HealthRecord {
    /// The record after a reboot, which resets every device: evidence stays, the wait ends.
    #[must_use]
    pub fn as_history(self) -> Self {
        Self { state: HealthState::Unknown, last_trouble: None, relapses: 0, ..self }
    }
}
