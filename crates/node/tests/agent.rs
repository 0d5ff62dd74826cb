//! The agent as a whole: the real gRPC over real sockets, the real dlopen; only the kubelet is the
//! embedded one and only the GPUs are simulated.

mod absent;
pub(crate) mod admin;
mod bounds;
mod conditions;
mod documents;
mod given_up;
mod health;
mod hostile;
mod labels;
mod lifecycle;
mod memory;
mod page;
mod partitions;
mod placement;
mod requests;
pub(crate) mod sharing;
mod start;
mod turns;
pub(crate) mod world;
