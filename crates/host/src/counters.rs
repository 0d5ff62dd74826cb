//! Counters with labels, as every part of the agent counts.

use prometheus_client::metrics::{counter::Counter, family::Family};

/// Labels in the order in which they are written.
pub type Labels = Vec<(&'static str, String)>;

/// Counters of one name.
pub type CounterFamily = Family<Labels, Counter>;
