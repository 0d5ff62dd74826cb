//! Eviction of a pod (`EvictionREST` of kube-apiserver). Disruption budgets are not modelled; a test can inject the
//! refusal of one.

use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use super::{
    kind::Kind, refusal::Refusal, request::NamespacedName, response::ApiResponse,
    server_state::ServerState,
};

impl ServerState {
    /// Deletes a pod under the eviction's preconditions.
    pub(super) fn evict(
        &mut self,
        id: &NamespacedName,
        eviction: &Value,
    ) -> Result<ApiResponse, Refusal> {
        self.delete(Kind::typed::<Pod>(), id, &eviction["deleteOptions"])?;
        Ok(ApiResponse::success_status())
    }
}
