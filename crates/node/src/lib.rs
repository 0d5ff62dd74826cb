//! Node agent: wiring of all layers, and the reconciler that closes the loop between them.

pub mod agent;
pub mod documents;
pub mod labels;
pub mod owners;
pub mod reload;

mod admin;
mod decisions;
mod metrics;
mod nv_fractions;
mod reconciler;
mod shares;
mod terminating_clients;
mod watchdog;

pub use admin::{ListenError, Probe, ProbeError, ProbeResponse, get_page, probe_agent};
pub use agent::{Agent, Reservation, StandbyMode, StartError};
pub use shares::{PodHoldings, PodShare, ShareKind, shares_of};
