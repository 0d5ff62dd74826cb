//! Labelled counters.

use prometheus_client::metrics::{counter::Counter, family::Family};

/// Label names and values, in written order.
pub type Labels = Vec<(&'static str, String)>;

/// Counters of one metric name.
pub type CounterFamily = Family<Labels, Counter>;
