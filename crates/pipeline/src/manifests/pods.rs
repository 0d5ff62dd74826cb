//! Deployments with their pod templates, and `ResourceClaimTemplates`.

use serde_json::{Map, Value, json};

use super::{ManifestError, Renderer, Workload, fields, labels};
use crate::{pipeline::DeviceRequirement, placement::Replica, plan::Layout};

/// `terminationGracePeriodSeconds`: a little more than the drain deadline of a stage.
const GRACE_SECONDS: u32 = 40;
/// Weight of the planned nodes in the affinity: the maximum of Kubernetes.
const WEIGHT: u32 = 100;
const SPREAD: &str = "topologySpreadConstraints";

/// Label that the Service of a stage selects. A pod has one such label per stage.
pub(super) fn stage_label(stage: &str) -> String {
    format!("windlass.dev/stage-{stage}")
}

/// Label that a Deployment selects.
pub(super) fn selector(workload: &str) -> Value {
    json!({ "app.kubernetes.io/name": workload })
}

// === impl Renderer ===

impl Renderer<'_> {
    pub(super) fn deployment(&self, workload: &Workload<'_>) -> Result<Value, ManifestError> {
        Ok(json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": self.metadata(&workload.name),
            "spec": {
                "replicas": workload.replicas,
                "selector": { "matchLabels": selector(&workload.name) },
                "strategy": { "type": "RollingUpdate", "rollingUpdate": self.update_strategy(workload) },
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
            let is_claimed = matches!(
                replica.alternative(self.pipeline, *stage).device,
                DeviceRequirement::Claim { .. }
            );
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
        let extra_fields = self.extra_fields(workload)?;
        // A topology key is allowed in one constraint only, so constraints of the file win.
        if workload.replicas > 1 && !extra_fields.contains_key(SPREAD) {
            pod.insert(SPREAD.to_owned(), spread(&workload.name));
        }
        let mut pod = Value::from(pod);
        fields::overlay(&mut pod, &extra_fields);
        Ok(pod)
    }

    /// Merged pod fields of all stages of the workload.
    fn extra_fields(&self, workload: &Workload<'_>) -> Result<Map<String, Value>, ManifestError> {
        let mut merged = Map::new();
        let stages = || workload.stages.iter().map(|(stage, _)| &self.pipeline.stages[*stage]);
        for stage in stages() {
            fields::merge(&mut merged, &stage.pod).map_err(|fields::Conflict(field)| {
                let stages = stages().map(|stage| &*stage.name).collect::<Vec<_>>().join(", ");
                ManifestError::Conflict { stages, field }
            })?;
        }
        Ok(merged)
    }

    fn affinity(&self, workload: &Workload<'_>) -> Value {
        let nodes: Vec<_> =
            workload.nodes.iter().map(|node| self.fleet.nodes[*node].name.as_str()).collect();
        let preferences = nodes.iter().map(|node| {
            // The label kubernetes.io/hostname can differ from the node's name. `matchFields` allows one value.
            let field = json!({ "key": "metadata.name", "operator": "In", "values": [node] });
            json!({ "weight": WEIGHT, "preference": { "matchFields": [field] } })
        });
        let preferences: Vec<Value> = preferences.collect();
        json!({ "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": preferences } })
    }

    /// Rolling update. If the pod has a device or a node selector, the old pod ends first: the new one needs its device
    /// or its space on the node. Meanwhile items wait at the previous stage.
    fn update_strategy(&self, workload: &Workload<'_>) -> Value {
        let needs_old_place = |(stage, replica): &(usize, &Replica)| {
            replica.device.is_some() || !self.pipeline.stages[*stage].node_selector.is_empty()
        };
        if workload.stages.iter().any(needs_old_place) {
            json!({ "maxSurge": 0, "maxUnavailable": 1 })
        } else {
            json!({ "maxSurge": 1, "maxUnavailable": 0 })
        }
    }

    /// One `ResourceClaimTemplate` per alternative with a claim that a replica uses.
    pub(super) fn claim_templates(&self) -> Vec<Value> {
        let mut templates = Vec::new();
        for (stage, spec) in self.pipeline.stages.iter().enumerate() {
            for (alternative, option) in spec.alternatives.iter().enumerate() {
                let is_used = self.plan.placement.replicas[stage]
                    .iter()
                    .any(|replica| replica.alternative == alternative);
                let DeviceRequirement::Claim { class, text, .. } = &option.device else { continue };
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

/// Topology spread constraint: the scheduler prefers different nodes for the replicas.
fn spread(workload: &str) -> Value {
    json!([{
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": { "matchLabels": selector(workload) },
    }])
}
