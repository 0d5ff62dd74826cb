//! Kubernetes manifests of a plan: Deployments, Services, `ResourceClaimTemplates` and `PodDisruptionBudgets`.
//!
//! Every container gets the arguments of `windlass stage`: its name, its listen address and the next stages. A stage
//! reaches another pod through a headless Service, so that it balances items over all replicas, and a stage of the same
//! pod through the loopback address. Node affinity is preferred, not required: a pod whose board fails can start on
//! another board with its device.

mod containers;
mod fields;
mod pods;

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{
    fleet::Fleet,
    pipeline::Pipeline,
    placement::Replica,
    plan::{Layout, Plan},
};

/// Reason that a plan cannot be rendered as manifests.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// A stage has no container image.
    #[error("stage {0:?} has no image: write one in the pipeline's file")]
    NoImage(String),
    /// Stages that share a pod set different values for one field of the pod.
    #[error(
        "stages {stages} share a pod, but set pod.{field} to different values: write one value, or use --layout pods"
    )]
    Conflict {
        /// Names of the stages.
        stages: String,
        /// Path of the field.
        field: String,
    },
}

/// Stages that share pods: the containers of one Deployment.
#[derive(Clone, Debug)]
struct Workload<'p> {
    /// Name of the Deployment.
    name: String,
    /// Stages by position, each with one replica as the pattern of its container.
    stages: Vec<(usize, &'p Replica)>,
    /// Positions of the nodes that the plan assigns to its pods.
    nodes: BTreeSet<usize>,
    replicas: usize,
}

/// Input of the rendering.
#[derive(Clone, Copy, Debug)]
struct Renderer<'p> {
    pipeline: &'p Pipeline,
    fleet: &'p Fleet,
    plan: &'p Plan,
}

/// Renders the objects of a plan, in the order in which to apply them.
///
/// # Errors
///
/// A stage has no image, or stages of one pod conflict in a field of it.
pub fn manifests(
    pipeline: &Pipeline,
    fleet: &Fleet,
    plan: &Plan,
) -> Result<Vec<Value>, ManifestError> {
    if let Some(stage) = pipeline.stages.iter().find(|stage| stage.image.is_empty()) {
        return Err(ManifestError::NoImage(stage.name.clone()));
    }
    let renderer = Renderer { pipeline, fleet, plan };
    let workloads = renderer.workloads();
    let mut objects = renderer.claim_templates();
    for stage in 0..pipeline.stages.len() {
        objects.push(renderer.service(stage));
    }
    for workload in &workloads {
        objects.push(renderer.deployment(workload)?);
        if workload.replicas > 1 {
            objects.push(renderer.disruption_budget(workload));
        }
    }
    Ok(objects)
}

/// Labels of every object of a pipeline.
pub fn labels(pipeline: &Pipeline) -> Value {
    json!({ "app.kubernetes.io/part-of": pipeline.name, "app.kubernetes.io/managed-by": "windlass" })
}

// === impl Renderer ===

impl<'p> Renderer<'p> {
    /// Groups the stages into workloads. Linked stages with one replica each on the same node share a pod, except in
    /// [`Layout::Pods`].
    fn workloads(&self) -> Vec<Workload<'p>> {
        let replicas = &self.plan.placement.replicas;
        let mut group: Vec<usize> = (0..replicas.len()).collect();
        if self.plan.layout != Layout::Pods {
            for link in &self.pipeline.links {
                let ([from], [to]) = (&*replicas[link.from], &*replicas[link.to]) else { continue };
                if from.node == to.node {
                    let (old_group, new_group) = (group[link.to], group[link.from]);
                    group
                        .iter_mut()
                        .filter(|member| **member == old_group)
                        .for_each(|member| *member = new_group);
                }
            }
        }
        let mut workloads: Vec<Workload<'p>> = Vec::new();
        for (stage, stage_replicas) in replicas.iter().enumerate() {
            if let [replica] = &**stage_replicas
                && let Some(workload) = workloads
                    .iter_mut()
                    .find(|candidate| group[candidate.stages[0].0] == group[stage])
            {
                workload.stages.push((stage, replica));
                continue;
            }
            workloads.extend(self.stage_workloads(stage));
        }
        workloads
    }

    /// Workloads of a stage that shares no pod: one per alternative that its replicas use.
    fn stage_workloads(&self, stage: usize) -> Vec<Workload<'p>> {
        let replicas = &self.plan.placement.replicas[stage];
        let alternatives: BTreeSet<_> =
            replicas.iter().map(|replica| replica.alternative).collect();
        let name = self.object_name(stage);
        let of_alternative = |(number, alternative): (usize, usize)| {
            let members: Vec<_> =
                replicas.iter().filter(|replica| replica.alternative == alternative).collect();
            Workload {
                // Unique: names of stages contain no dot.
                name: if number == 0 { name.clone() } else { format!("{name}.{}", number + 1) },
                stages: vec![(stage, members[0])],
                nodes: members.iter().map(|replica| replica.node).collect(),
                replicas: members.len(),
            }
        };
        alternatives.into_iter().enumerate().map(of_alternative).collect()
    }

    /// Name of the Service, and of the first Deployment, of a stage.
    fn object_name(&self, stage: usize) -> String {
        format!("{}-{}", self.pipeline.name, self.pipeline.stages[stage].name)
    }

    fn metadata(&self, name: &str) -> Value {
        json!({ "name": name, "labels": labels(self.pipeline) })
    }

    /// A headless Service, whose DNS name resolves to the addresses of all replicas.
    fn service(&self, stage: usize) -> Value {
        let spec = &self.pipeline.stages[stage];
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": self.metadata(&self.object_name(stage)),
            "spec": {
                "clusterIP": "None",
                "selector": { pods::stage_label(&spec.name): self.pipeline.name },
                "ports": [{ "name": "stage", "port": self.pipeline.port(stage), "targetPort": self.pipeline.port(stage) }],
            },
        })
    }

    fn disruption_budget(&self, workload: &Workload<'_>) -> Value {
        json!({
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": self.metadata(&workload.name),
            "spec": { "maxUnavailable": 1, "selector": { "matchLabels": pods::selector(&workload.name) } },
        })
    }
}
