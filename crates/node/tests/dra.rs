//! The driver for Dynamic Resource Allocation as a whole, with real gRPC over its sockets and the real client of the
//! API server; only the machine, the kubelet and the API server are simulated.

mod bounds;
mod claims;
mod hostile;
mod kubelet;
mod life;
mod life_rig;
mod mismatched_names;
mod modes;
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
mod switching;
mod time_slices;
mod waiting;
mod world;

pub(crate) use self::world::records;
