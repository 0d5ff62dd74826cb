//! Facts that `/metrics` and `/devices` show only if the configuration discloses them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A fact that `/metrics` and `/devices` omit by default, because neither page authenticates its readers.
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
