//! Document readers: files of an operator, of the kubelet, and of the agent.

use std::path::Path;

use windlass_cdi::text;
use windlass_config::Config;
use windlass_core::cdi::{self, Spec};
use windlass_host::causes;
use windlass_kubelet_api::{checkpoint::Checkpoint, dra::checkpoint as dra};
use windlass_machine::MachineProfile;
use windlass_migrate::NvidiaPluginFlags;
use windlass_node::documents::{self, Document};

use crate::{
    Verdict::{self, Accepted, Refused},
    has_words, refused,
};

/// Reads a configuration in any format. An accepted configuration must survive conversion to our format.
pub(crate) fn configuration(bytes: &[u8]) -> Verdict {
    configured("w.yaml", bytes)
}

/// Reads udev rules as a configuration. The file name selects the format.
pub(crate) fn udev_rules(bytes: &[u8]) -> Verdict {
    configured("60-w.rules", bytes)
}

fn configured(name: &str, bytes: &[u8]) -> Verdict {
    let Ok(text) = std::str::from_utf8(bytes) else { return Refused };
    match windlass_migrate::parse(Path::new(name), text, &NvidiaPluginFlags::default()) {
        Ok(loaded) => {
            let ours = windlass_config::to_yaml(&loaded.config);
            let read = Config::parse(Path::new("w.yaml"), &ours);
            let read = read.unwrap_or_else(|error| panic!("{}\nin\n{ours}", causes(&error)));
            assert_eq!(read, loaded.config, "as read from\n{ours}");
            for warning in loaded.warnings {
                has_words(&warning.text);
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

/// Reads a CDI document. An accepted document is checked, and must survive a round trip.
pub(crate) fn cdi(bytes: &[u8]) -> Verdict {
    match serde_json::from_slice::<Spec>(bytes) {
        Ok(document) => {
            for mistake in cdi::check(&document) {
                has_words(&mistake.to_string());
            }
            let again: Spec = serde_json::from_str(&text(&document)).expect("as it was written");
            assert_eq!(again, document);
            Accepted
        }
        Err(error) => refused(&error.to_string()),
    }
}

/// Reads the device manager's checkpoint.
pub(crate) fn checkpoint(bytes: &[u8]) -> Verdict {
    let Ok(text) = std::str::from_utf8(bytes) else { return Refused };
    match Checkpoint::parse(text) {
        Ok(record) => {
            let again = Checkpoint::parse(&record.to_json()).expect("as it was written");
            assert_eq!(again, record);
            Accepted
        }
        Err(error) => refused(&causes(&error)),
    }
}

/// Reads the DRA manager's checkpoint, with and without verification of its checksum.
pub(crate) fn claim_checkpoint(bytes: &[u8]) -> Verdict {
    let Ok(text) = std::str::from_utf8(bytes) else { return Refused };
    if let Err(error) = dra::Checkpoint::parse(text) {
        has_words(&causes(&error));
    }
    let Ok(record) = dra::Checkpoint::parse_unverified(text) else { return Refused };
    let again = dra::Checkpoint::parse(&record.to_json()).expect("as it was written");
    assert_eq!(again, record);
    Accepted
}

/// Reads the agent's own files. An accepted file must be accepted again after a rewrite.
pub(crate) fn kept(bytes: &[u8]) -> Verdict {
    let mut verdict = Refused;
    for document in Document::ALL {
        match document.reread(bytes) {
            Ok(written) => {
                let again = document.reread(&written).expect("as it was written");
                assert_eq!(
                    String::from_utf8_lossy(&again),
                    String::from_utf8_lossy(&written),
                    "{document:?}"
                );
                verdict = Accepted;
            }
            Err(why) => has_words(&why),
        }
    }
    verdict
}

/// Reads an allocated claim from an API server.
pub(crate) fn claim(bytes: &[u8]) -> Verdict {
    match documents::check_claim(bytes) {
        Ok(()) => Accepted,
        Err(why) => refused(&why),
    }
}

/// Reads the driver parameters of a claim.
pub(crate) fn parameters(bytes: &[u8]) -> Verdict {
    let Ok(parameters) = serde_json::from_slice(bytes) else { return Refused };
    match documents::check_parameters(parameters) {
        Ok(()) => Accepted,
        Err(why) => refused(&why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeds;

    #[test]
    fn of_each_file_that_the_agent_keeps_there_is_one_to_begin_from() {
        for document in Document::ALL {
            let seeds = seeds::kept();
            let outcomes: Vec<_> = seeds.iter().map(|seed| document.reread(seed)).collect();
            assert!(outcomes.iter().any(Result::is_ok), "{document:?}: {outcomes:?}");
        }
    }
}
