//! Parsers for untrusted documents, as pure functions of bytes. The fuzz targets call these.

use std::path::Path;

use serde_json::Value;
use windlass_allocations::ledger::ClaimRef;
use windlass_deviceplugin::history;
use windlass_discovery::health_store;
use windlass_host::{causes, state_file};
use windlass_lifecycle::cleanup;
use windlass_resources::offers;

/// State file that one agent writes for the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Document {
    /// `claims.json`: prepared devices by claim.
    Claims,
    /// `handover.json`: cleanup state of each device.
    Cleanup,
    /// `health-*.json`: health history of each device.
    Health,
    /// `devices.json`: hardware behind each allocated id.
    Devices,
    /// `choices.json`: allocation history.
    Choices,
}

// === impl Document ===

impl Document {
    /// All state files.
    pub const ALL: [Self; 5] =
        [Self::Claims, Self::Cleanup, Self::Health, Self::Devices, Self::Choices];

    /// Parses the file and serializes it again, or returns the reason why the agent would set it aside.
    pub fn round_trip(self, text: &[u8]) -> Result<Vec<u8>, String> {
        match self {
            Self::Claims => {
                state_file::round_trip::<windlass_dra::Records>(windlass_dra::CLAIMS, text)
            }
            Self::Cleanup => {
                state_file::round_trip::<cleanup::CleanupRecords>(cleanup::FORMAT, text)
            }
            Self::Health => {
                state_file::round_trip::<health_store::HealthRecords>(health_store::FORMAT, text)
            }
            Self::Devices => {
                state_file::round_trip::<offers::Fingerprints>(crate::reconciler::DEVICES, text)
            }
            Self::Choices => history::reserialize(Path::new("choices.json"), text)
                .map_err(|error| causes(&error)),
        }
    }
}

/// Checks the opaque parameters of a claim or a device class.
pub fn check_parameters(parameters: Value) -> Result<(), String> {
    windlass_dra::check_parameters(parameters).map_err(|error| error.to_string())
}

/// Checks a claim with UID `u` as received from an API server.
///
/// An API server is trusted no more than a claim's author: fields may be missing.
pub fn check_claim(text: &[u8]) -> Result<(), String> {
    let object = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let [namespace, name, uid] = ["ns", "c", "u"].map(ToOwned::to_owned);
    windlass_dra::check_claim_parameters(object, &ClaimRef { namespace, name, uid })
}
