//! Claims on a real cluster: its scheduler chooses from the agent's slices, its kubelet has the agent prepare.
//!
//! Every test asks both sides who has what: `windlass devices` on the node, the claims' allocations in the
//! API server. They agree while pods run, and both say nobody at the end.

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

/// A claim is released when the last pod is gone, and what the kubelet missed a minute later.
const LET_GO: Duration = Duration::from_secs(150);

/// A kubelet that could not have a claim prepared tries again when it looks at the pod anew, after 60 to 90
/// seconds. On a busy machine it may find the driver unregistered the first time, and a daemon that is starting the
/// second.
const PREPARED: Duration = Duration::from_secs(240);
