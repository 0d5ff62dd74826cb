//! Facts that the pages show only if the operator allows it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A fact on `/metrics` or `/devices` that is left out by default. Neither page authenticates its readers.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Disclosed {
    /// `pods`: namespace, pod and container that hold a device, as labels of metrics.
    Pods,
    /// `serials`: serial numbers among the attributes of devices.
    Serials,
}
