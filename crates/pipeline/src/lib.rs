//! Pipelines: stages that pass items to each other and run on the accelerators of a cluster.
//!
//! ```text
//! file ──> Pipeline ─┐
//!                    ├─> plan ─> Placement ─┬─> prediction (throughput, latency)
//! Fleet (boards,    ─┘  search              └─> manifests
//!   a cluster)
//! ```
//!
//! The crate does no I/O and reads no clock.

mod capacity;
mod document;
mod file;
pub mod fleet;
pub mod manifests;

pub mod pipeline;
pub mod placement;
pub mod plan;
pub mod prediction;
pub mod quantity;
mod search;
pub mod taint;

pub use capacity::Capacity;
pub use file::schema;
pub use fleet::Fleet;
pub use pipeline::Pipeline;
pub use placement::Placement;
pub use plan::{Layout, Plan};
pub use prediction::Prediction;
