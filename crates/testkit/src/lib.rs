//! Fixtures for the tests of the agent: a simulated machine with a kubelet, and the agent in the test's process.
//!
//! A test begins with a [`Node`]: a simulated machine in a folder, and a configuration with short timeouts. The test
//! changes the configuration, then starts the kubelet ([`Node::kubelet`]) and the agent ([`Node::agent`]). Then the
//! test injects a fault ([`Node::inject`]) and waits for the effect:
//!
//! - [`Running::until`] waits for the agent's state.
//! - [`allocatable`] waits for the kubelet.
//! - [`Said::until`] waits for the log.
//! - [`value`] waits for any channel, and [`until`] polls.
//!
//! All waits share one limit. A timeout's error names the awaited state and the last one seen.
//!
//! These fixtures are for integration tests only. In a unit test the tested crate would be linked twice, with
//! incompatible types.

mod board;
mod documents;
mod folder;
mod giving_up;
mod host;
mod kubelet;
mod node;
mod rights;
mod running;
mod said;
mod wait;

pub use board::{MHZ, board_rule, happens};
pub use documents::{class, of_type, pod_of_claim, template, typed};
pub use folder::temporary_folder;
pub use giving_up::Caller;
pub use kubelet::{GPU, allocatable, counts, pod_with};
pub use node::{Node, health, settings};
pub use rights::Right;
pub use running::Running;
pub use said::Said;
pub use wait::{LIMIT, exists, in_time, until, value, vanishes};
