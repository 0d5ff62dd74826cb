//! Eviction of a pod (`EvictionREST` of kube-apiserver). Disruption budgets are not modelled: a test injects the refusal of
//! one.

use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use super::{answer::Answer, kind::Kind, refusal::Refusal, request::Id, world::World};

impl World {
    /// Deletes a pod under the eviction's preconditions.
    pub(super) fn evict(&mut self, id: &Id, eviction: &Value) -> Result<Answer, Refusal> {
        self.delete(Kind::typed::<Pod>(), id, &eviction["deleteOptions"])?;
        Ok(Answer::done())
    }
}
