//! The topology manager: which NUMA nodes a container's devices should come from.

mod hint;
mod mask;
mod policy;

pub(crate) use hint::{Demand, Hint, Hints};
pub use mask::NumaMask;
pub(crate) use policy::merge;
pub use policy::{TopologyPolicy, TopologyScope};
