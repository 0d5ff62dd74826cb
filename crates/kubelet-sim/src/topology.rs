//! The topology manager: chooses the NUMA nodes for the devices of a container or pod.

mod hint;
mod mask;
mod policy;

pub(crate) use hint::{Hint, HintRequest, Hints};
pub use mask::NumaMask;
pub(crate) use policy::merge;
pub use policy::{TopologyPolicy, TopologyScope};
