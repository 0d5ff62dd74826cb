//! Fixtures for the tests of the agent: a simulated machine with a kubelet, and the agent in the test's process.
//!
//! A test begins with a [`Node`]: a simulated machine in a folder, and a configuration with short timeouts. The test
//! changes the configuration, then starts the kubelet ([`Node::start_kubelet`]) and the agent ([`Node::start_agent`]).
//! Then the test injects a fault ([`Node::inject`]) and waits for the effect:
//!
//! - [`RunningAgent::until`] waits for a state of the node in the agent.
//! - [`until_allocatable`] waits for allocatable devices in the kubelet.
//! - [`LogCapture::until`] waits for a line of the agent's log.
//! - [`until_value`] waits for a value in any watch channel, and [`until`] polls.
//!
//! All waits share one timeout, [`TIMEOUT`]. After it they panic with the awaited state and the last state seen.
//!
//! Only integration tests can use these fixtures. A unit test would link the tested crate twice, with incompatible
//! types.

mod board;
mod cancelled_calls;
mod documents;
mod folder;
mod host;
mod kubelet;
mod log;
mod node;
mod rights;
mod running;
mod wait;

pub use board::{MHZ, UNKNOWN_HISTORY_STEPS, board_rule, expect_events};
pub use cancelled_calls::Caller;
pub use documents::{claim_template, device_class, from_json, pod_of_claim, type_selector};
pub use folder::temporary_folder;
pub use kubelet::{
    GPU, pod_with, registrations, until_allocatable, until_counts, until_registrations,
};
pub use log::LogCapture;
pub use node::{Node, agent_config, health_policy};
pub use rights::Permission;
pub use running::RunningAgent;
pub use wait::{TIMEOUT, until, until_exists, until_removed, until_value, within_timeout};
