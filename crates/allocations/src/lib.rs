//! Which container or claim holds which device, and when it lets go.
//!
//! ```text
//!   kubelet's record ──┐
//!   pod resources ─────┴─> podresources ──> ledger <── Allocate, Prepare
//! ```

pub mod follow;
pub mod ledger;
pub mod podresources;
pub mod rivals;

use std::collections::{BTreeMap, BTreeSet};

use windlass_core::resource::ResourceName;

/// Ids that containers hold by the kubelet's record, per resource.
pub type Held = BTreeMap<ResourceName, BTreeSet<String>>;
