//! The cluster half: kube-scheduler's extender, with a live view of all devices in the cluster.
//!
//! ```text
//!  API server ──watches──> facts ──> index ──> sched: ranks, parts, reasons
//!                                      ^ │
//!  kube-scheduler ──HTTP──> extender ──┘ └──> binder ──Binding, under a Lease──> API server
//! ```
//!
//! All state is rebuilt from the API server's objects; nothing is stored on disk. The extender writes only Bindings of
//! pods, events of pending pods, and the Lease. Commands write the objects of an [`application`], with the user's
//! credentials.

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
mod pending_events;
mod rights;
mod run;
mod server;
mod watches;
mod wire;

pub use access::{NoAccess, RequestError};
pub use live::LiveIndex;
pub use run::{Config, PageConfig, PageSource, RunError, run, run_page};
pub use server::{TlsError, TlsFiles};
