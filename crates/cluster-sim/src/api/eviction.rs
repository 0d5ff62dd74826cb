//! Eviction of a pod (`EvictionREST` of kube-apiserver). Disruption budgets are not modelled: a test injects the refusal of
//! one.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::{answer::Answer, kind::Kind, refusal::Refusal, request::Id, world::World};

impl World {
    /// Deletes a pod under the eviction's preconditions.
    pub(super) fn evict(&mut self, id: &Id, eviction: &Value) -> Result<Answer, Refusal> {
        self.delete(Kind::typed::<Pod>(), id, &eviction["deleteOptions"])?;
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201,
        });
        Ok(Answer::new(201, status))
    }
}
