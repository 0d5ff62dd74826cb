//! The driver for Dynamic Resource Allocation as a whole: the real gRPC over the real sockets, the real
//! client of the API server; only the machine, the kubelet and the API server are simulated.

/// What the tests of a whole agent have in common.
#[path = "../common"]
mod common {
    pub(crate) mod folder;
    pub(crate) mod giving_up;
    pub(crate) mod node;
    pub(crate) mod rights;
    pub(crate) mod running;
    pub(crate) mod said;
}

mod anew;
mod another;
mod bounds;
mod claims;
mod ending;
mod hostile;
mod kubelet;
mod life;
mod life_rig;
mod modes;
mod obstacles;
mod partitions;
mod refusals;
mod registration;
mod restarts;
mod rights;
mod shares;
mod switching;
mod time_slices;
mod waiting;
mod world;
