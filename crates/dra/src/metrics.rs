//! What the driver counts: calls for claims, and pools that are published.

mod claims;
mod pools;

pub use self::{
    claims::{ClaimCall, ClaimMetrics},
    pools::DraMetrics,
};
