//! Labels of the objects by which Windlass runs, in every manifest and chart of ours.

use k8s_openapi::api::core::v1::Pod;

const NAME: (&str, &str) = ("app.kubernetes.io/name", "windlass");
const AGENT: (&str, &str) = ("app.kubernetes.io/component", "node");

/// Selects all objects.
pub(crate) fn all() -> String {
    format!("{}={}", NAME.0, NAME.1)
}

/// Selects those of the agents.
pub(crate) fn agents() -> String {
    format!("{},{}={}", all(), AGENT.0, AGENT.1)
}

/// A pod of an agent or of the cluster half.
pub(crate) fn is_ours(pod: &Pod) -> bool {
    has(pod, NAME)
}

/// A pod of an agent.
pub(crate) fn is_agent(pod: &Pod) -> bool {
    is_ours(pod) && has(pod, AGENT)
}

fn has(pod: &Pod, (key, value): (&str, &str)) -> bool {
    let labels = pod.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(key)).is_some_and(|it| it == value)
}
