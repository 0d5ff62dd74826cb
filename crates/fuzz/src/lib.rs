//! Fuzz targets: each reader of untrusted input, as a function of bytes.
//!
//! Each function returns a verdict for any bytes. It panics if the reader rejects the input without an explanation, or
//! if an accepted input does not survive a round trip. The mutations in `tests/` and the targets of `cargo fuzz` in
//! `/fuzz` call these functions, and detect panics and hangs.

mod documents;
mod expressions;
mod host;
mod messages;
mod nri;
mod seeds;

/// Fuzz target: a reader of untrusted input.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name for `cargo fuzz` and messages.
    pub name: &'static str,
    /// Runs the reader on an input.
    pub read: fn(&[u8]) -> Verdict,
    /// Returns accepted inputs, as starting points of mutations.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// Outcome of a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The reader accepts the input.
    Accepted,
    /// The reader rejects the input, with an explanation.
    Refused,
}

/// All fuzz targets.
pub const TARGETS: &[Target] = &[
    Target { name: "configuration", read: documents::configuration, seeds: seeds::configuration },
    Target { name: "udev_rules", read: documents::udev_rules, seeds: seeds::udev_rules },
    Target { name: "machine_profile", read: documents::machine_profile, seeds: seeds::profiles },
    Target { name: "cdi", read: documents::cdi, seeds: seeds::cdi },
    Target { name: "checkpoint", read: documents::checkpoint, seeds: seeds::checkpoint },
    Target { name: "claim_checkpoint", read: documents::claim_checkpoint, seeds: seeds::claims },
    Target { name: "kept", read: documents::state_files, seeds: seeds::state_files },
    Target { name: "claim", read: documents::claim, seeds: seeds::allocated_claims },
    Target { name: "claim_parameters", read: documents::parameters, seeds: seeds::parameters },
    Target { name: "selector", read: expressions::selector, seeds: seeds::expressions },
    Target { name: "messages", read: messages::kubelet_messages, seeds: messages::seeds },
    Target { name: "nri", read: nri::nri_session, seeds: nri::seeds },
    Target { name: "host", read: host::discovery, seeds: host::seeds },
];

/// Fuzz target with the given name. Panics if there is none.
pub fn target(name: &str) -> Target {
    let found = TARGETS.iter().copied().find(|target| target.name == name);
    found.unwrap_or_else(|| panic!("no target {name}"))
}

/// Runs the reader of the fuzz target with the given name.
pub fn read(name: &str, bytes: &[u8]) {
    let _ = (target(name).read)(bytes);
}

/// Returns [`Verdict::Refused`], and asserts that the error contains an explanation.
fn refused(error: &str) -> Verdict {
    assert_explained(error);
    Verdict::Refused
}

/// Asserts that an error contains an explanation: more than five characters.
fn assert_explained(error: &str) {
    assert!(error.trim().len() > 5, "an error without an explanation: {error:?}");
}
