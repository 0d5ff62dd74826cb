//! Allocations of devices to containers and claims: the ledger, and the kubelet's checkpoint and API that feed it.
//!
//! ```text
//!   kubelet's checkpoint ──> follow ──┬──> ledger <── Allocate, Prepare
//!   pod resources API ──> podresources┘
//! ```

pub mod duplicates;
pub mod follow;
pub mod ledger;
pub mod podresources;

use std::collections::{BTreeMap, BTreeSet};

use windlass_core::resource::ResourceName;

/// Ids that containers hold by the kubelet's checkpoint, by resource.
pub type HeldIds = BTreeMap<ResourceName, BTreeSet<String>>;
