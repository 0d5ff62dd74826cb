//! What Windlass reads and cannot trust: each reader as a function of bytes.
//!
//! A function returns whatever the bytes are, with whether they were accepted, and panics where a promise is broken:
//! a refusal has no words, or what was written is not read back the same. Panics and hangs of the reader itself
//! are what its callers look for: the mutations in `tests/`, and the targets of `cargo fuzz` in `/fuzz`.

mod documents;
mod expressions;
mod host;
mod messages;
mod seeds;

/// A reader.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// What it is called by `cargo fuzz` and in messages.
    pub name: &'static str,
    /// Has it read.
    pub read: fn(&[u8]) -> Verdict,
    /// Inputs that it accepts, to begin from.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// What a reader makes of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is what the reader expects.
    Accepted,
    /// It is not, and the refusal has words.
    Refused,
}

/// Every reader.
pub const TARGETS: [Target; 12] = [
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
    Target { name: "host", read: host::survey, seeds: host::seeds },
];

/// The reader of a name.
pub fn target(name: &str) -> Target {
    let found = TARGETS.into_iter().find(|target| target.name == name);
    found.unwrap_or_else(|| panic!("no target {name}"))
}

/// Has the reader of that name read.
pub fn read(name: &str, bytes: &[u8]) {
    let _ = (target(name).read)(bytes);
}

fn refused(refusal: &str) -> Verdict {
    has_words(refusal);
    Verdict::Refused
}

/// A refusal tells a person something.
fn has_words(refusal: &str) {
    assert!(refusal.trim().len() > 5, "a refusal without words: {refusal:?}");
}
