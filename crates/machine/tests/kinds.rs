//! Tests of machines with devices of every kind: their fake trees and their changes.

mod attached;
mod families;
mod happenings;
mod network;
mod world;
