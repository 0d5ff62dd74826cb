//! Readers of documents: configurations, kubelet checkpoints, files of the agent, and resource claims.

use std::path::Path;

use windlass_cdi::to_json;
use windlass_config::Config;
use windlass_core::cdi::{self, Spec};
use windlass_host::causes;
use windlass_kubelet_api::{checkpoint::Checkpoint, dra::checkpoint as dra};
use windlass_machine::MachineProfile;
use windlass_migrate::NvidiaPluginFlags;
use windlass_node::documents::{self, Document};

use crate::{
    Verdict::{self, Accepted, Refused},
    assert_explained, refused,
};

/// Reads a configuration in any format except udev rules. An accepted configuration must survive conversion to
/// Windlass's format.
pub(crate) fn configuration(bytes: &[u8]) -> Verdict {
    configuration_file("w.yaml", bytes)
}

/// Reads udev rules as a configuration. The file name selects the format.
pub(crate) fn udev_rules(bytes: &[u8]) -> Verdict {
    configuration_file("60-w.rules", bytes)
}

fn configuration_file(name: &str, bytes: &[u8]) -> Verdict {
    let Ok(text) = std::str::from_utf8(bytes) else { return Refused };
    match windlass_migrate::parse(Path::new(name), text, &NvidiaPluginFlags::default()) {
        Ok(loaded) => {
            let yaml = windlass_config::to_yaml(&loaded.config);
            let again = Config::parse(Path::new("w.yaml"), &yaml);
            let again = again.unwrap_or_else(|error| panic!("{}\nin\n{yaml}", causes(&error)));
            assert_eq!(again, loaded.config, "converted to\n{yaml}");
            for warning in loaded.warnings {
                assert_explained(&warning.text);
            }
            Accepted
        }
        Err(error) => refused(&causes(&error)),
    }
}

/// Reads a profile of a simulated machine.
pub(crate) fn machine_profile(bytes: &[u8]) -> Verdict {
    let Ok(text) = std::str::from_utf8(bytes) else { return Refused };
    match MachineProfile::parse("w.yaml", text) {
        Ok(_) => Accepted,
        Err(error) => refused(&causes(&error)),
    }
}

/// Reads a CDI spec. An accepted spec must survive a round trip, and the mistakes in it must have explanations.
pub(crate) fn cdi(bytes: &[u8]) -> Verdict {
    match serde_json::from_slice::<Spec>(bytes) {
        Ok(spec) => {
            for mistake in cdi::check(&spec) {
                assert_explained(&mistake.to_string());
            }
            let again: Spec = serde_json::from_str(&to_json(&spec)).expect("a written spec");
            assert_eq!(again, spec);
            Accepted
        }
        Err(error) => refused(&error.to_string()),
    }
}

/// Reads the checkpoint of the kubelet's device manager.
pub(crate) fn checkpoint(bytes: &[u8]) -> Verdict {
    let Ok(text) = std::str::from_utf8(bytes) else { return Refused };
    match Checkpoint::parse(text) {
        Ok(checkpoint) => {
            let again = Checkpoint::parse(&checkpoint.to_json()).expect("a written checkpoint");
            assert_eq!(again, checkpoint);
            Accepted
        }
        Err(error) => refused(&causes(&error)),
    }
}

/// Reads the checkpoint of the kubelet's DRA manager, with and without verification of its checksum.
pub(crate) fn claim_checkpoint(bytes: &[u8]) -> Verdict {
    let Ok(text) = std::str::from_utf8(bytes) else { return Refused };
    if let Err(error) = dra::Checkpoint::parse(text) {
        assert_explained(&causes(&error));
    }
    let Ok(checkpoint) = dra::Checkpoint::parse_unverified(text) else { return Refused };
    let again = dra::Checkpoint::parse(&checkpoint.to_json()).expect("a written checkpoint");
    assert_eq!(again, checkpoint);
    Accepted
}

/// Reads the input as each kind of file in the agent's state folder. An accepted file must survive a round trip.
pub(crate) fn state_files(bytes: &[u8]) -> Verdict {
    let mut verdict = Refused;
    for document in Document::ALL {
        match document.round_trip(bytes) {
            Ok(written) => {
                let again = document.round_trip(&written).expect("a written file");
                assert_eq!(
                    String::from_utf8_lossy(&again),
                    String::from_utf8_lossy(&written),
                    "{document:?}"
                );
                verdict = Accepted;
            }
            Err(error) => assert_explained(&error),
        }
    }
    verdict
}

/// Reads an allocated resource claim, as received from the API server.
pub(crate) fn claim(bytes: &[u8]) -> Verdict {
    match documents::check_claim(bytes) {
        Ok(()) => Accepted,
        Err(error) => refused(&error),
    }
}

/// Reads the driver's parameters in a resource claim.
pub(crate) fn parameters(bytes: &[u8]) -> Verdict {
    let Ok(parameters) = serde_json::from_slice(bytes) else { return Refused };
    match documents::check_parameters(parameters) {
        Ok(()) => Accepted,
        Err(error) => refused(&error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeds;

    #[test]
    fn each_kind_of_file_has_a_seed() {
        for document in Document::ALL {
            let seeds = seeds::state_files();
            let outcomes: Vec<_> = seeds.iter().map(|seed| document.round_trip(seed)).collect();
            assert!(outcomes.iter().any(Result::is_ok), "{document:?}: {outcomes:?}");
        }
    }
}
