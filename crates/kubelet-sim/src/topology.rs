//! The topology manager: the NUMA nodes that a container's devices should come from.

mod hint;
mod mask;
mod policy;

pub(crate) use hint::{Demand, Hint, Hints};
pub use mask::NumaMask;
pub(crate) use policy::merge;
pub use policy::{TopologyPolicy, TopologyScope};
