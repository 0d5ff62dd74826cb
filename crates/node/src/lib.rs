//! The agent of a node: finds its devices, watches their health, and offers them to the kubelet.
//!
//! Data flows one way: sources read the host and publish snapshots; the keeper merges them into the
//! node's state, writes the CDI documents and publishes again; the device plugin servers read.
//! Nothing reaches back.

pub mod agent;
pub mod cdi;
pub mod choices;
pub mod clock;
pub mod cluster;
pub mod config;
pub mod discovery;
pub mod documents;
pub mod files;
pub mod holders;
pub mod host;
pub mod labels;
pub mod mps;
pub mod partitions;
pub mod record;
pub mod state;

mod admin;
mod attended;
mod dated;
mod device_info;
mod directory;
mod dra;
mod driver_program;
mod endpoint;
mod evidence;
mod glob;
mod grant;
mod handover;
mod kept;
mod ledger;
mod metrics;
mod nvidia_smi;
mod offer;
mod outside;
mod plugin;
mod presence;
mod registration;
mod shortened;
mod state_folder;
mod telemetry;
mod template;

pub use admin::{DoorError, Probe, ProbeAnswer, ProbeError, probe_agent};
pub use agent::{Agent, StartError, Succession, await_kubelet, await_predecessor, stand_by};
pub use config::Config;

/// An error and its causes in one line: log formats differ in what they keep of a chain.
pub fn causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.map(ToString::to_string).fold(error.to_string(), |text, cause| {
        // Layers that only pass an error on say the same.
        if text.ends_with(&cause) { text } else { format!("{text}: {cause}") }
    })
}
