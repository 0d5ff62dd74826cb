//! The driver for Dynamic Resource Allocation as a whole, with real gRPC over its sockets and the real client of the
//! API server; only the machine, the kubelet and the API server are simulated.

mod bounds;
mod claims;
mod device_lifecycle;
mod file_modes;
mod hostile;
mod kubelet;
mod lifecycle_rig;
mod mig_mode;
mod mismatched_names;
mod obstacles;
mod partitions;
mod reallocation;
mod refusals;
mod registration;
mod restarts;
mod rights;
mod shares;
mod shares_by_kernel;
mod shutdown;
mod time_slices;
mod waiting_claims;
mod world;

pub(crate) use self::world::records;
