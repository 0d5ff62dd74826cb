//! Binding of a pod to a node: one write of node, annotations and labels (`BindingREST` of kube-apiserver).

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::{
    kind::Kind, refusal::Refusal, request::NamespacedName, response::ApiResponse,
    server_state::ServerState, shape, store::Entry,
};

impl ServerState {
    /// Binds a pod. Refused for a pod that is bound, being deleted, or gated, and for a UID or resource version other
    /// than the binding's.
    pub(super) fn bind(
        &mut self,
        id: &NamespacedName,
        binding: &Value,
    ) -> Result<ApiResponse, Refusal> {
        let kind = Kind::typed::<Pod>();
        let Entry { mut object, applied_configs: applied } = self.find(kind, id)?.clone();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (expected, actual) =
            (text(&binding["metadata"]["uid"]), text(&object["metadata"]["uid"]));
        if !expected.is_empty() && expected != actual {
            let reason = format!(
                "Precondition failed: UID in precondition: {expected}, UID in object meta: {actual}"
            );
            return Err(Refusal::conflict(kind, &id.name, &reason));
        }
        let version = text(&binding["metadata"]["resourceVersion"]);
        let actual = text(&object["metadata"]["resourceVersion"]);
        if !version.is_empty() && version != actual {
            let reason = format!(
                "Precondition failed: ResourceVersion in precondition: {version}, ResourceVersion in object meta: {actual}"
            );
            return Err(Refusal::conflict(kind, &id.name, &reason));
        }
        let (name, node) = (&id.name, text(&object["spec"]["nodeName"]));
        let gates = object["spec"]["schedulingGates"].as_array().map_or(0, Vec::len);
        let reason = if object["metadata"]["deletionTimestamp"].is_string() {
            Some(format!("pod {name} is being deleted, cannot be assigned to a host"))
        } else if !node.is_empty() {
            Some(format!("pod {name} is already assigned to node {node:?}"))
        } else if gates > 0 {
            Some(format!("pod {name} has non-empty .spec.schedulingGates"))
        } else {
            None
        };
        if let Some(reason) = reason {
            return Err(Refusal::unbindable(name, &reason));
        }
        object["spec"]["nodeName"] = binding["target"]["name"].clone();
        for field in ["annotations", "labels"] {
            for (key, value) in binding["metadata"][field].as_object().into_iter().flatten() {
                object["metadata"][field][key] = value.clone();
            }
        }
        set_scheduled(&mut object["status"]);
        self.store.insert(kind, id.clone(), Entry { object, applied_configs: applied });
        Ok(ApiResponse::success_status())
    }
}

fn set_scheduled(status: &mut Value) {
    if !status["conditions"].is_array() {
        status["conditions"] = json!([]);
    }
    let conditions = status["conditions"].as_array_mut().expect("made above");
    conditions.retain(|condition| condition["type"] != "PodScheduled");
    let now = shape::now();
    conditions.push(json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": now}));
}
