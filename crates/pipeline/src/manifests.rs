//! Manifests of a plan: Deployments, Services, claim templates and disruption budgets, as Kubernetes has them.
//!
//! Every container gets the arguments of `windlass stage`: its name, where to listen, and what comes next. A stage of
//! another pod is found by a headless Service, so that items are balanced over all replicas; one of the same pod by the
//! loopback. Nodes are preferred and not required: a pod whose board fails starts on another one that has its device.

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

/// A plan that has no manifests.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// A stage without an image cannot run in a cluster.
    #[error("stage {0:?} has no image: write one in the pipeline's file")]
    NoImage(String),
    /// Stages that share a pod want different values of a field of it.
    #[error(
        "stages {stages} share a pod, and pod.{field} is not the same for all: write one value, or take --layout pods"
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
    /// Stages by position, each with the replica that its pods have in common.
    stages: Vec<(usize, &'p Replica)>,
    /// Positions of the nodes that the plan has for its pods.
    nodes: BTreeSet<usize>,
    replicas: usize,
}

/// Input of the manifests.
#[derive(Clone, Copy, Debug)]
struct Source<'p> {
    pipeline: &'p Pipeline,
    fleet: &'p Fleet,
    plan: &'p Plan,
}

/// The objects of a plan, in the order in which they are applied.
///
/// # Errors
///
/// A stage has no image, or stages of one pod want different things of it.
pub fn manifests(
    pipeline: &Pipeline,
    fleet: &Fleet,
    plan: &Plan,
) -> Result<Vec<Value>, ManifestError> {
    if let Some(stage) = pipeline.stages.iter().find(|stage| stage.image.is_empty()) {
        return Err(ManifestError::NoImage(stage.name.clone()));
    }
    let source = Source { pipeline, fleet, plan };
    let workloads = source.workloads();
    let mut objects = source.claim_templates();
    for stage in 0..pipeline.stages.len() {
        objects.push(source.service(stage));
    }
    for workload in &workloads {
        objects.push(source.deployment(workload)?);
        if workload.replicas > 1 {
            objects.push(source.disruption_budget(workload));
        }
    }
    Ok(objects)
}

/// Labels of every object of a pipeline.
pub fn labels(pipeline: &Pipeline) -> Value {
    json!({ "app.kubernetes.io/part-of": pipeline.name, "app.kubernetes.io/managed-by": "windlass" })
}

// === impl Source ===

impl<'p> Source<'p> {
    /// Stages by the pods that they share.
    fn workloads(&self) -> Vec<Workload<'p>> {
        let replicas = &self.plan.placement.replicas;
        let mut group: Vec<usize> = (0..replicas.len()).collect();
        if self.plan.layout != Layout::Pods {
            for link in &self.pipeline.links {
                let ([from], [to]) = (&*replicas[link.from], &*replicas[link.to]) else { continue };
                if from.node == to.node {
                    let (old, new) = (group[link.to], group[link.from]);
                    group.iter_mut().filter(|of| **of == old).for_each(|of| *of = new);
                }
            }
        }
        let mut workloads: Vec<Workload<'p>> = Vec::new();
        for (stage, of) in replicas.iter().enumerate() {
            if let [only] = &**of
                && let Some(with) =
                    workloads.iter_mut().find(|other| group[other.stages[0].0] == group[stage])
            {
                with.stages.push((stage, only));
                continue;
            }
            workloads.extend(self.of_stage(stage));
        }
        workloads
    }

    /// A stage's own workloads: one for each alternative that its replicas use.
    fn of_stage(&self, stage: usize) -> Vec<Workload<'p>> {
        let replicas = &self.plan.placement.replicas[stage];
        let alternatives: BTreeSet<_> =
            replicas.iter().map(|replica| replica.alternative).collect();
        let name = self.object_name(stage);
        let of_alternative = |(number, alternative): (usize, usize)| {
            let of: Vec<_> =
                replicas.iter().filter(|replica| replica.alternative == alternative).collect();
            Workload {
                // No stage's name has a dot.
                name: if number == 0 { name.clone() } else { format!("{name}.{}", number + 1) },
                stages: vec![(stage, of[0])],
                nodes: of.iter().map(|replica| replica.node).collect(),
                replicas: of.len(),
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

    /// A headless Service: its name stands for the addresses of all replicas.
    fn service(&self, stage: usize) -> Value {
        let of = &self.pipeline.stages[stage];
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": self.metadata(&self.object_name(stage)),
            "spec": {
                "clusterIP": "None",
                "selector": { pods::stage_label(&of.name): self.pipeline.name },
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
