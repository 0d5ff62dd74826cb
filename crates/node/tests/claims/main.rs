//! A node in a cluster: the agent, the embedded kubelet and the embedded API server with its scheduler. What
//! claims and containers have is in one hand at a time, and nothing is left of it, whatever happens.

/// What the tests of a whole agent have in common.
#[path = "../common"]
mod common {
    pub(crate) mod folder;
    pub(crate) mod node;
    pub(crate) mod running;
}

mod chance;
mod hands;
mod in_a_pod;
mod moving;
mod random;
mod record;
mod restarts;
mod switching;
mod trouble;
mod walk;
mod ways;
mod wish;
mod world;
