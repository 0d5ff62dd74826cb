//! Labels of Windlass' own objects, as its manifests and charts set them.

use k8s_openapi::api::core::v1::Pod;

const NAME: (&str, &str) = ("app.kubernetes.io/name", "windlass");
const AGENT: (&str, &str) = ("app.kubernetes.io/component", "node");

/// Label selector of all Windlass objects.
pub(crate) fn windlass_selector() -> String {
    format!("{}={}", NAME.0, NAME.1)
}

/// Label selector of the agents.
pub(crate) fn agent_selector() -> String {
    format!("{},{}={}", windlass_selector(), AGENT.0, AGENT.1)
}

/// True for a pod of an agent or of the cluster half.
pub(crate) fn is_windlass_pod(pod: &Pod) -> bool {
    has(pod, NAME)
}

/// True for a pod of an agent.
pub(crate) fn is_agent(pod: &Pod) -> bool {
    is_windlass_pod(pod) && has(pod, AGENT)
}

fn has(pod: &Pod, (key, value): (&str, &str)) -> bool {
    let labels = pod.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(key)).is_some_and(|it| it == value)
}
