//! Machines with devices of every kind: what the fake tree shows of them, and what happens to them.

mod attached;
mod families;
mod happenings;
mod network;
mod world;
