//! The registration socket: `/v1beta1.Registration/Register` and its checks.
//!
//! Order and texts from `plugin/v1beta1/server.go` of Kubernetes 1.36. Every failure has the code
//! `Unknown`, because the real one returns a plain Go error.

mod connection;
mod endpoint;
mod name;
mod server;

pub(crate) use server::{Listening, serve};
