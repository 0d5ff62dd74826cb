//! The generated messages of the protocol, and the protocol version.

#[expect(
    clippy::all,
    clippy::pedantic,
    unreachable_pub,
    reason = "generated from proto/stage.v1.proto"
)]
mod generated {
    include!("generated/windlass.stage.v1.rs");
}

pub(crate) use generated::*;

/// Protocol version of this crate. Stages with different versions refuse each other.
pub const PROTOCOL: u32 = 1;

/// Maximum bytes of a message beyond its payload: mostly visits, of which an item has tens.
pub(crate) const MESSAGE_OVERHEAD: usize = 256 * 1024;
