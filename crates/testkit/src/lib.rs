//! Fixtures for the tests of the agent: a simulated machine with a kubelet, and the agent in the test's process.
//!
//! A test begins with a [`Node`]: a machine in a folder of its own, and settings for an agent with little patience.
//! It changes the settings, starts the kubelet ([`Node::kubelet`]) and the agent ([`Node::agent`]), has something
//! happen ([`Node::inject`]), and waits until it shows: [`Running::until`] for the state, [`allocatable`] for the
//! kubelet, [`Said::until`] for the log, [`value`] for any channel, [`until`] for what has to be looked at. Each wait
//! has one limit, and an error that says what was awaited and what was seen last.
//!
//! For integration tests only: a unit test of one of the crates that it uses would meet that crate twice, with types that differ.

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
