//! Metrics of the driver: calls for claims, and published pools.

mod claims;
mod pools;

pub use self::{
    claims::{ClaimCall, ClaimMetrics},
    pools::DraMetrics,
};
