//! The whole agent, with real gRPC over real sockets and the real dlopen. The kubelet is the embedded one, and the GPUs
//! are simulated.

mod absent;
pub(crate) mod admin;
mod bounds;
mod cancelled_calls;
mod conditions;
mod documents;
mod health;
mod health_history;
mod hostile;
mod labels;
mod lifecycle;
mod one_agent;
mod page;
mod partitions;
mod placement;
mod requests;
pub(crate) mod sharing;
mod start;
pub(crate) mod world;
