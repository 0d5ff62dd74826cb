//! Claims on a real cluster: the scheduler allocates from the agent's slices, and the kubelet calls the agent to
//! prepare.
//!
//! Every test compares the owners in `windlass devices` on the node with the allocations of claims in the API server.
//! They agree while pods run, and both are empty at the end.

mod account;
mod beside;
mod burst;
mod forced;
mod foreign;
mod init;
mod midway;
mod objects;
mod owners;
mod restarts;
mod rig;
#[path = "../../src/demo/soak/rng.rs"]
mod rng;
mod shipped;
mod spans;

use std::time::Duration;

/// Deadline of a release. A claim is released after its last pod; a release that the kubelet missed, a minute later.
const RELEASE_LIMIT: Duration = Duration::from_secs(150);

/// Deadline of a preparation. The kubelet retries a failed one when it syncs the pod again, after 60 to 90 seconds. On
/// a busy machine the first attempt may find the driver unregistered, and the second a daemon that is starting.
const PREPARE_LIMIT: Duration = Duration::from_secs(240);
