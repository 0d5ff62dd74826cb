//! The generated messages of the protocol, and its version.

#[expect(
    clippy::all,
    clippy::pedantic,
    unreachable_pub,
    reason = "generated of proto/stage.v1.proto"
)]
mod generated {
    include!("generated/windlass.stage.v1.rs");
}

pub(crate) use generated::*;

/// Version of the protocol that this kit speaks. Stages of different versions refuse each other.
pub const PROTOCOL: u32 = 1;

/// Bytes of a message beyond its payload: names and times of the stages before, of which a pipeline has tens.
pub(crate) const SLACK: usize = 256 * 1024;
