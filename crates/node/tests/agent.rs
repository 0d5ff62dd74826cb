//! The whole agent, with real gRPC over real sockets and the real dlopen. The kubelet is the embedded one, and the GPUs
//! are simulated.

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
