//! What the tests of a whole agent have in common.

pub(crate) mod folder;
pub(crate) mod kubelet;
pub(crate) mod node;
pub(crate) mod running;
