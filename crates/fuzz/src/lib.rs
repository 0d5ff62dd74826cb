//! Readers of untrusted input, each as a function of bytes.
//!
//! Each function returns a verdict for any bytes. It panics on a broken promise: a refusal without words,
//! or a failed round trip. Callers look for panics and hangs of the readers: the mutations in `tests/`, and
//! the targets of `cargo fuzz` in `/fuzz`.

mod documents;
mod expressions;
mod host;
mod messages;
mod nri;
mod seeds;

/// Reader of untrusted input.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name for `cargo fuzz` and messages.
    pub name: &'static str,
    /// Function that runs the reader.
    pub read: fn(&[u8]) -> Verdict,
    /// Accepted inputs, as a starting point for mutations.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// Outcome of a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The reader accepts the input.
    Accepted,
    /// The reader refuses the input, and the refusal has words.
    Refused,
}

/// Every reader.
pub const TARGETS: &[Target] = &[
    Target { name: "configuration", read: documents::configuration, seeds: seeds::configuration },
    Target { name: "udev_rules", read: documents::udev_rules, seeds: seeds::udev_rules },
    Target { name: "machine_profile", read: documents::machine_profile, seeds: seeds::profiles },
    Target { name: "cdi", read: documents::cdi, seeds: seeds::cdi },
    Target { name: "checkpoint", read: documents::checkpoint, seeds: seeds::checkpoint },
    Target { name: "claim_checkpoint", read: documents::claim_checkpoint, seeds: seeds::claims },
    Target { name: "kept", read: documents::kept, seeds: seeds::kept },
    Target { name: "claim", read: documents::claim, seeds: seeds::allocated },
    Target { name: "claim_parameters", read: documents::parameters, seeds: seeds::parameters },
    Target { name: "selector", read: expressions::selector, seeds: seeds::expressions },
    Target { name: "messages", read: messages::all, seeds: messages::seeds },
    Target { name: "nri", read: nri::conversation, seeds: nri::seeds },
    Target { name: "host", read: host::survey, seeds: host::seeds },
];

/// Reader with the given name.
pub fn target(name: &str) -> Target {
    let found = TARGETS.iter().copied().find(|target| target.name == name);
    found.unwrap_or_else(|| panic!("no target {name}"))
}

/// Runs the reader with the given name.
pub fn read(name: &str, bytes: &[u8]) {
    let _ = (target(name).read)(bytes);
}

fn refused(refusal: &str) -> Verdict {
    has_words(refusal);
    Verdict::Refused
}

/// Asserts that a refusal contains an explanation.
fn has_words(refusal: &str) {
    assert!(refusal.trim().len() > 5, "a refusal without words: {refusal:?}");
}
