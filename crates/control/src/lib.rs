//! The cluster half, live: kube-scheduler's extender over a view of all devices.
//!
//! ```text
//!  API server ──watches──> facts ──> index ──> sched: ranks, parts, reasons
//!                                      ^ │
//!  kube-scheduler ──HTTP──> extender ──┘ └──> binder ──Binding, under a Lease──> API server
//! ```
//!
//! Everything is rebuilt from the API server's objects: nothing is kept on a disk, and the cluster half writes nothing but
//! the Binding of a pod.

pub mod agents;
pub mod application;
pub mod diagnosis;
pub mod explanation;
pub mod facts;
pub mod index;
pub mod objects;
pub mod spare;

mod access;
mod binder;
mod extender;
mod fence;
mod gpushare;
mod labels;
mod live;
mod metrics;
mod page;
mod rights;
mod run;
mod server;
mod watches;
mod wire;

pub use access::NoAccess;
pub use live::Live;
pub use run::{Config, PageConfig, PageSource, RunError, run, run_page};
pub use server::{TlsError, TlsFiles};
