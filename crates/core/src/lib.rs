//! The domain of Windlass as plain values: devices, topology, placement, container edits.
//!
//! Pure: no files, clock, async or Kubernetes client. Time and randomness are arguments.

#[macro_use]
mod text;

pub mod annotation;
pub mod attribute;
pub mod cdi;
pub mod device;
pub mod dmem;
pub mod enforcement;
pub mod event_reason;
pub mod finding;
pub mod health;
pub mod inventory;
pub mod labels;
pub mod memory_limit;
pub mod name;
pub mod nvlink;
pub mod partition;
pub mod pci;
pub mod placement;
pub mod replica;
pub mod resource;
pub mod selector;
pub mod telemetry;
pub mod topology;
pub mod virtual_gpus;
