//! Machines with devices of every kind: their fake trees, and changes of devices.

mod attached;
mod device_changes;
mod families;
mod fixture;
mod network;
