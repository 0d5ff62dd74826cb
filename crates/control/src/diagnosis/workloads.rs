//! Checks of agents and the cluster half, and of nodes whose devices no agent serves.

use std::collections::BTreeMap;

use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment},
    core::v1::{Node, Pod},
};
use kube::ResourceExt;
use windlass_core::finding::Finding;

use super::Workloads;
use crate::{
    labels::{is_agent, is_windlass_pod},
    objects::Objects,
};

const AREA: &str = "agents and cluster half";

/// Node labels that mark GPUs, set by the discovery of AMD, Intel or NVIDIA, or by node-feature-discovery.
const GPU_LABELS: [&str; 5] = [
    "feature.node.kubernetes.io/amd-gpu",
    "intel.feature.node.kubernetes.io/gpu",
    "nvidia.com/gpu.present",
    "feature.node.kubernetes.io/pci-10de.present",
    "feature.node.kubernetes.io/pci-0302_10de.present",
];

pub(super) fn check(workloads: Option<&Workloads>, objects: &Objects) -> Vec<Finding> {
    let Some(workloads) = workloads else {
        return vec![Finding::skipped(AREA, "workloads", "DaemonSets and Deployments are unknown")];
    };
    let daemon_sets = workloads.daemon_sets.iter();
    let mut findings: Vec<_> =
        daemon_sets.map(|it| check_agents(it, &workloads.refused_pods)).collect();
    if workloads.daemon_sets.is_empty() {
        findings.push(
            Finding::problem(AREA, "agents", "no DaemonSet of Windlass")
                .with_remedy("install it: docs/install.md"),
        );
    }
    findings.extend(workloads.deployments.iter().map(check_cluster_half));
    let windlass_pods = objects.pods().iter().filter(|pod| is_windlass_pod(pod));
    findings.extend(windlass_pods.clone().filter_map(check_pod));
    let ready_agents = windlass_pods.filter(|pod| is_agent(pod) && is_ready(pod));
    let served_nodes: Vec<_> = ready_agents.filter_map(node_of).collect();
    findings.extend(objects.nodes().iter().filter_map(|node| check_node(node, &served_nodes)));
    findings
}

/// `namespace/name` of an object.
fn namespaced_name(object: &impl ResourceExt) -> String {
    format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any())
}

fn check_agents(daemon_set: &DaemonSet, refused_pods: &BTreeMap<String, String>) -> Finding {
    let subject = namespaced_name(daemon_set);
    let status = daemon_set.status.as_ref();
    let desired = status.map_or(0, |it| it.desired_number_scheduled);
    let ready = status.map_or(0, |it| it.number_ready);
    let detail = format!("{ready} of {desired} agents are ready");
    match (desired, ready) {
        (0, _) => Finding::warning(AREA, subject, "no node is selected for the agents")
            .with_remedy(
                "check its nodeSelector, and whether it tolerates the taints of your nodes",
            ),
        (desired, ready) if ready < desired => match refused_pods.get(&subject) {
            Some(reason) => {
                let remedy = refusal_remedy(daemon_set, reason);
                Finding::problem(AREA, subject, format!("{detail}: {reason}")).with_remedy(remedy)
            }
            None => Finding::problem(AREA, subject, detail).with_remedy(
                "the pods below, and `kubectl describe` of the DaemonSet, have the reason",
            ),
        },
        _ => Finding::ok(AREA, subject, detail),
    }
}

/// Remedy for an agent's pod that the API server refuses.
fn refusal_remedy(daemon_set: &DaemonSet, reason: &str) -> String {
    let namespace = daemon_set.metadata.namespace.as_deref().unwrap_or_default();
    if reason.contains("PodSecurity") {
        format!(
            "`kubectl label namespace {namespace} pod-security.kubernetes.io/enforce=privileged`"
        )
    } else {
        "permit the pod in the cluster's policy that the reason names, and look again".to_owned()
    }
}

fn check_cluster_half(deployment: &Deployment) -> Finding {
    let subject = namespaced_name(deployment);
    let status = deployment.status.as_ref();
    let ready = status.and_then(|it| it.ready_replicas).unwrap_or(0);
    let desired = deployment.spec.as_ref().and_then(|it| it.replicas).unwrap_or(1);
    let detail = format!("{ready} of {desired} replicas are ready");
    if ready == 0 && desired > 0 {
        Finding::problem(AREA, subject, detail).with_remedy(
            "pods with `schedulerName: windlass` wait: see the logs of its two containers",
        )
    } else if ready < desired {
        Finding::warning(AREA, subject, detail)
            .with_remedy("another replica takes over if it fails")
    } else {
        Finding::ok(AREA, subject, detail)
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut ready = conditions.filter(|condition| condition.type_ == "Ready");
    ready.next().is_some_and(|condition| condition.status == "True")
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// A finding about a Windlass pod that is not ready, with the first container that waits or has failed.
fn check_pod(pod: &Pod) -> Option<Finding> {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let is_ending = pod.metadata.deletion_timestamp.is_some();
    if is_ready(pod) || is_ending || matches!(phase, Some("Succeeded" | "Failed")) {
        return None;
    }
    let subject = namespaced_name(pod);
    let status = pod.status.as_ref()?;
    let init_containers = status.init_container_statuses.iter().flatten();
    let containers = init_containers.chain(status.container_statuses.iter().flatten());
    let states = containers.filter_map(|it| Some((&it.name, it.state.as_ref()?)));
    let mut reasons = states.filter_map(|(name, state)| {
        // `PodInitializing` means that an init container runs or waits. That container has the reason.
        let waiting = state.waiting.as_ref().and_then(|it| it.reason.clone());
        let waiting = waiting.filter(|reason| reason != "PodInitializing");
        let terminated = state.terminated.as_ref().filter(|it| it.exit_code != 0);
        let terminated = terminated.map(|it| format!("ended with {}", it.exit_code));
        Some(format!("container {name}: {}", waiting.or(terminated)?))
    });
    let node = node_of(pod).unwrap_or("no node");
    let reason = reasons.next().unwrap_or_else(|| "not ready".to_owned());
    let remedy = if reason.contains("Image") || reason.contains("ErrImage") {
        "import the image on the node, or name a registry that has it: docs/install.md#images"
    } else {
        "`kubectl logs` and `kubectl describe` of the pod have the reason"
    };
    Some(Finding::problem(AREA, subject, format!("{reason}, on {node}")).with_remedy(remedy))
}

/// A finding about a node whose labels mark GPUs and that has no ready agent.
fn check_node(node: &Node, served_nodes: &[&str]) -> Option<Finding> {
    let name = node.metadata.name.as_deref()?;
    let labels = node.metadata.labels.as_ref()?;
    let has_devices =
        GPU_LABELS.iter().any(|label| labels.get(*label).is_some_and(|it| it == "true"));
    if !has_devices || served_nodes.contains(&name) {
        return None;
    }
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let taints: Vec<_> = taints.map(|taint| taint.key.as_str()).collect();
    let remedy = if taints.is_empty() {
        "check the DaemonSet's nodeSelector".to_owned()
    } else {
        format!("let the DaemonSet tolerate its taints: {}", taints.join(", "))
    };
    Some(
        Finding::warning(AREA, format!("node {name}"), "has GPUs, but no ready agent")
            .with_remedy(remedy),
    )
}
