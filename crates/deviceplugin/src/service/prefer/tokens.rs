//! A preference among tokens of a pool: all are alike, so those that must be there, then the first.

use std::collections::BTreeSet;

use windlass_core::placement::PlacementError;

use super::{
    super::super::wire::{LeftOut, Refusal},
    Preferred, Question,
};

impl Question<'_> {
    pub(super) fn among_tokens(&self) -> Result<Preferred, Refusal> {
        let required: BTreeSet<_> = self.request.must_include_device_i_ds.iter().collect();
        let mut free: Vec<_> = self.request.available_device_i_ds.iter().collect();
        free.retain(|id| self.offer.pool_has(id) && !required.contains(id));
        free.sort_by_key(|id| (id.len(), id.as_str()));
        let available = required.len() + free.len();
        if self.size() > available {
            let source = PlacementError::TooFew { size: self.size(), available };
            let (resource, left_out) = (self.resource.clone(), LeftOut::new([]));
            return Err(Refusal::Placement { resource, source, left_out });
        }
        let ids = required.into_iter().chain(free).take(self.size()).cloned().collect();
        let why = "every token stands for the same devices".to_owned();
        Ok(Preferred { ids, policy: self.policy, why, steps: 0, exact: true, among: None })
    }
}
