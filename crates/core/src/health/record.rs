//! What is written down of a device's health for the agent's next life.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Evidence, HealthState};

/// A device's health with what is needed to judge its next observation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthRecord {
    /// The state it was in.
    pub state: HealthState,
    /// When it came into it.
    pub since: Timestamp,
    /// What trouble it had; newest last.
    pub evidence: Vec<Evidence>,
    /// When it had trouble last.
    pub last_trouble: Option<Timestamp>,
    /// How often it failed again soon after it recovered.
    pub relapses: u32,
}

// === impl HealthRecord ===

impl HealthRecord {
    /// The same after a reboot, which resets every device: the evidence remains, the wait does not.
    #[must_use]
    pub fn as_history(self) -> Self {
        Self { state: HealthState::Unknown, last_trouble: None, relapses: 0, ..self }
    }
}
