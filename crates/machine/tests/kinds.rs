//! Machines with devices of every kind: their fake trees, and changes of devices.

mod attached;
mod families;
mod happenings;
mod network;
mod world;
