//! What the agent is told and finds and did not write in this life of it, each kind as a function of bytes: for whoever
//! wants to know what the agent makes of a document, and for whoever tries it with bad ones.

use std::path::Path;

use serde_json::Value;
use windlass_allocations::ledger::ClaimRef;
use windlass_deviceplugin::history;
use windlass_discovery::health_store;
use windlass_host::{causes, state_file};
use windlass_lifecycle::cleanup;
use windlass_resources::offers;

/// A document that one life of the agent writes for the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Document {
    /// `claims.json`: what is prepared for which claim.
    Claims,
    /// `handover.json`: where each device stands between two containers.
    HandOvers,
    /// `health-*.json`: what devices did.
    Evidence,
    /// `devices.json`: what ids stood for.
    Devices,
    /// `choices.json`: what was chosen, and from what.
    Choices,
}

// === impl Document ===

impl Document {
    /// Every one.
    pub const ALL: [Self; 5] =
        [Self::Claims, Self::HandOvers, Self::Evidence, Self::Devices, Self::Choices];

    /// What the agent would write, had it read this; or in words why it would set it aside.
    pub fn reread(self, text: &[u8]) -> Result<Vec<u8>, String> {
        match self {
            Self::Claims => state_file::reread::<windlass_dra::Records>(windlass_dra::CLAIMS, text),
            Self::HandOvers => state_file::reread::<cleanup::Records>(cleanup::HAND_OVERS, text),
            Self::Evidence => {
                state_file::reread::<health_store::Records>(health_store::FORMAT, text)
            }
            Self::Devices => state_file::reread::<offers::Marked>(crate::reconciler::DEVICES, text),
            Self::Choices => {
                history::reread(Path::new("choices.json"), text).map_err(|error| causes(&error))
            }
        }
    }
}

/// Whether the agent understands what a claim or its class says to it, and else what it does not.
pub fn check_parameters(parameters: Value) -> Result<(), String> {
    windlass_dra::parameters_understood(parameters).map_err(|error| error.to_string())
}

/// Whether the driver understands a claim with UID `u` that an API server sends it, and else what it does not.
///
/// The API server is believed no more than a claim's author: what it sends may lack anything.
pub fn check_claim(text: &[u8]) -> Result<(), String> {
    let object = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let [namespace, name, uid] = ["ns", "c", "u"].map(ToOwned::to_owned);
    windlass_dra::understood_claim(object, &ClaimRef { namespace, name, uid })
}
