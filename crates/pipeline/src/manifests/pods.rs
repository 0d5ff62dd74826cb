//! Deployments, and the pods that they make.

use serde_json::{Map, Value, json};

use super::{ManifestError, Source, Workload, fields, labels};
use crate::{pipeline::Wanted, placement::Replica, plan::Layout};

/// Time to finish what is in the queues: a little more than a stage takes to drain.
const GRACE_SECONDS: u32 = 40;
/// Weight of the planned nodes: the largest that Kubernetes knows.
const WEIGHT: u32 = 100;
const SPREAD: &str = "topologySpreadConstraints";

/// The label by which a Service finds the pods of a stage, which may share them with others.
pub(super) fn stage_label(stage: &str) -> String {
    format!("windlass.dev/stage-{stage}")
}

/// The label by which a Deployment finds its own pods.
pub(super) fn selector(workload: &str) -> Value {
    json!({ "app.kubernetes.io/name": workload })
}

// === impl Source ===

impl Source<'_> {
    pub(super) fn deployment(&self, workload: &Workload<'_>) -> Result<Value, ManifestError> {
        Ok(json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": self.metadata(&workload.name),
            "spec": {
                "replicas": workload.replicas,
                "selector": { "matchLabels": selector(&workload.name) },
                "strategy": { "type": "RollingUpdate", "rollingUpdate": self.update(workload) },
                "template": {
                    "metadata": { "labels": self.pod_labels(workload) },
                    "spec": self.pod(workload)?,
                },
            },
        }))
    }

    fn pod_labels(&self, workload: &Workload<'_>) -> Value {
        let mut labels = labels(self.pipeline);
        labels["app.kubernetes.io/name"] = workload.name.clone().into();
        for (stage, _) in &workload.stages {
            labels[stage_label(&self.pipeline.stages[*stage].name)] =
                self.pipeline.name.clone().into();
        }
        labels
    }

    fn pod(&self, workload: &Workload<'_>) -> Result<Value, ManifestError> {
        let containers = workload
            .stages
            .iter()
            .map(|(stage, replica)| self.container(*stage, replica, workload));
        let mut pod = Map::new();
        pod.insert("terminationGracePeriodSeconds".to_owned(), GRACE_SECONDS.into());
        pod.insert("containers".to_owned(), containers.collect());
        let claims = workload.stages.iter().filter_map(|(stage, replica)| {
            let is_claimed =
                matches!(replica.alternative(self.pipeline, *stage).device, Wanted::Claim { .. });
            let name = &self.pipeline.stages[*stage].name;
            let template = self.template_name(*stage, replica.alternative);
            is_claimed.then(|| json!({ "name": name, "resourceClaimTemplateName": template }))
        });
        let claims: Vec<Value> = claims.collect();
        if !claims.is_empty() {
            pod.insert("resourceClaims".to_owned(), claims.into());
        }
        if self.plan.layout != Layout::Pods {
            pod.insert("affinity".to_owned(), self.affinity(workload));
        }
        let added = self.added(workload)?;
        // Of one topology there is one constraint.
        if workload.replicas > 1 && !added.contains_key(SPREAD) {
            pod.insert(SPREAD.to_owned(), spread(&workload.name));
        }
        let mut pod = Value::from(pod);
        fields::overlay(&mut pod, &added);
        Ok(pod)
    }

    /// The fields that the file adds to the pod, of all its stages.
    fn added(&self, workload: &Workload<'_>) -> Result<Map<String, Value>, ManifestError> {
        let mut all = Map::new();
        let stages = || workload.stages.iter().map(|(stage, _)| &self.pipeline.stages[*stage]);
        for stage in stages() {
            fields::join(&mut all, &stage.pod).map_err(|fields::Conflict(field)| {
                let stages = stages().map(|stage| &*stage.name).collect::<Vec<_>>().join(", ");
                ManifestError::Conflict { stages, field }
            })?;
        }
        Ok(all)
    }

    fn affinity(&self, workload: &Workload<'_>) -> Value {
        let nodes: Vec<_> =
            workload.nodes.iter().map(|node| self.fleet.nodes[*node].name.as_str()).collect();
        let preferred = nodes.iter().map(|node| {
            // The label kubernetes.io/hostname need not be the node's name. A field has one value.
            let field = json!({ "key": "metadata.name", "operator": "In", "values": [node] });
            json!({ "weight": WEIGHT, "preference": { "matchFields": [field] } })
        });
        let preferred: Vec<Value> = preferred.collect();
        json!({ "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": preferred } })
    }

    /// A new pod needs the device that the old one has, or the room on its only node: the old one ends first, and its
    /// items wait at the stage before.
    fn update(&self, workload: &Workload<'_>) -> Value {
        let needs_its_place = |(stage, replica): &(usize, &Replica)| {
            replica.device.is_some() || !self.pipeline.stages[*stage].node_selector.is_empty()
        };
        if workload.stages.iter().any(needs_its_place) {
            json!({ "maxSurge": 0, "maxUnavailable": 1 })
        } else {
            json!({ "maxSurge": 1, "maxUnavailable": 0 })
        }
    }

    /// Templates of the claims that the placed replicas need.
    pub(super) fn claim_templates(&self) -> Vec<Value> {
        let mut templates = Vec::new();
        for (stage, of) in self.pipeline.stages.iter().enumerate() {
            for (alternative, one) in of.alternatives.iter().enumerate() {
                let is_used = self.plan.placement.replicas[stage]
                    .iter()
                    .any(|used| used.alternative == alternative);
                let Wanted::Claim { class, text, .. } = &one.device else { continue };
                if !is_used {
                    continue;
                }
                let mut exactly = json!({ "deviceClassName": class });
                if !text.is_empty() {
                    exactly["selectors"] = json!([{ "cel": { "expression": text } }]);
                }
                templates.push(json!({
                    "apiVersion": "resource.k8s.io/v1",
                    "kind": "ResourceClaimTemplate",
                    "metadata": self.metadata(&self.template_name(stage, alternative)),
                    "spec": { "spec": { "devices": { "requests": [{ "name": "device", "exactly": exactly }] } } },
                }));
            }
        }
        templates
    }

    fn template_name(&self, stage: usize, alternative: usize) -> String {
        format!("{}-{}", self.object_name(stage), alternative + 1)
    }
}

/// Replicas go to different nodes where they can.
fn spread(workload: &str) -> Value {
    json!([{
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": { "matchLabels": selector(workload) },
    }])
}
