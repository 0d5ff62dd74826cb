//! The agent as a whole: the real gRPC over real sockets, the real dlopen; only the kubelet is the
//! embedded one and only the GPUs are simulated.

mod admin;
mod health;
mod lifecycle;
mod requests;
mod start;
mod world;
