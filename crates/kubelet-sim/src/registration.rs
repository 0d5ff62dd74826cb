//! Registration of device plugins: `/v1beta1.Registration/Register` on `kubelet.sock`.
//!
//! Order of the checks and error texts from `plugin/v1beta1/server.go` of Kubernetes 1.36. Each failed
//! check has the status code `Unknown`, because the real kubelet returns a plain Go error.

mod connection;
mod endpoint;
mod name;
mod server;

pub(crate) use server::{ServerContext, serve};
