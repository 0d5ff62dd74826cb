//! Preferred allocation among tokens of a pool or of amounts: the required ones, then the lowest names.

use std::collections::BTreeSet;

use windlass_core::placement::PlacementError;

use super::{
    super::super::wire::{Excluded, Refusal},
    Preference, PreferenceRequest,
};

impl PreferenceRequest<'_> {
    pub(super) fn prefer_tokens(&self) -> Result<Preference, Refusal> {
        let required: BTreeSet<_> = self.request.must_include_device_i_ds.iter().collect();
        let mut free_tokens: Vec<_> = self.request.available_device_i_ds.iter().collect();
        free_tokens.retain(|id| self.offer.has_token(id) && !required.contains(id));
        free_tokens.sort_by_key(|id| (id.len(), id.as_str()));
        let available = required.len() + free_tokens.len();
        if self.size() > available {
            let source = PlacementError::TooFew { size: self.size(), available };
            let resource = self.resource.clone();
            return Err(Refusal::Placement { resource, source, excluded: Excluded::default() });
        }
        let ids = required.into_iter().chain(free_tokens).take(self.size()).cloned().collect();
        let reason = "all tokens are alike".to_owned();
        Ok(Preference { ids, policy: self.policy, reason, steps: 0, exact: true, candidates: None })
    }
}
