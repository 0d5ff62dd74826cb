//! The domain of Windlass as plain values: what a device is, how well devices go together, which to
//! choose, and what a container must be given. No files, no clock, no async, no Kubernetes client:
//! time and randomness are arguments.

pub mod attribute;
pub mod cdi;
pub mod device;
pub mod health;
pub mod inventory;
pub mod labels;
pub mod name;
pub mod nvlink;
pub mod partition;
pub mod pattern;
pub mod pci;
pub mod placement;
pub mod replica;
pub mod resource;
pub mod selector;
pub mod topology;
