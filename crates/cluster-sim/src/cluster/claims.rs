//! Claims of a pod: creation from templates, binding, release.

use k8s_openapi::{
    api::{
        core::v1::{Pod, PodExtendedResourceClaimStatus, PodResourceClaim, PodResourceClaimStatus},
        resource::v1::{
            AllocationResult, ResourceClaim, ResourceClaimConsumerReference, ResourceClaimTemplate,
        },
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};

use super::{NodeAllocation, ScheduledPod, SchedulingError, extended, namespace, namespaced_name};
use crate::api::{Objects, Refusal};

/// Finalizer that prevents the deletion of an allocated claim.
const FINALIZER: &str = "resource.kubernetes.io/delete-protection";
/// Annotation of a claim from a template: the name of the claim within the pod.
const POD_CLAIM: &str = "resource.kubernetes.io/pod-claim-name";

/// The claims that a pod references, and the pod with the names of generated claims in its status. Missing claims are
/// created from their templates.
pub(super) fn of_pod(
    objects: &Objects,
    mut pod: Pod,
) -> Result<(Pod, Vec<ResourceClaim>), SchedulingError> {
    let references = pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten());
    let references: Vec<PodResourceClaim> = references.cloned().collect();
    let mut claims = Vec::new();
    for reference in &references {
        let claim = find(objects, &pod, reference)?;
        if reference.resource_claim_template_name.is_some() {
            let statuses = pod.status.get_or_insert_default();
            let statuses = statuses.resource_claim_statuses.get_or_insert_default();
            statuses.retain(|status| status.name != reference.name);
            statuses.push(PodResourceClaimStatus {
                name: reference.name.clone(),
                resource_claim_name: claim.metadata.name.clone(),
            });
        }
        claims.push(claim);
    }
    let refusal_error = |source| SchedulingError::Refused { pod: namespaced_name(&pod), source };
    let pod = objects.update_status(&pod).map_err(refusal_error)?;
    Ok((pod, claims))
}

fn find(
    objects: &Objects,
    pod: &Pod,
    reference: &PodResourceClaim,
) -> Result<ResourceClaim, SchedulingError> {
    let namespace_name = namespace(&pod.metadata);
    let missing_object = |kind: &str, name: &str| SchedulingError::MissingObject {
        pod: namespaced_name(pod),
        reason: format!("{kind} {name:?} not found"),
    };
    if let Some(name) = &reference.resource_claim_name {
        return objects
            .get(&namespace_name, name)
            .ok_or_else(|| missing_object("resourceclaim", name));
    }
    let statuses =
        pod.status.iter().flat_map(|status| status.resource_claim_statuses.iter().flatten());
    let generated = statuses.into_iter().find(|status| status.name == reference.name);
    let generated = generated.and_then(|status| status.resource_claim_name.as_deref());
    if let Some(claim) = generated.and_then(|name| objects.get(&namespace_name, name)) {
        return Ok(claim);
    }
    let template = reference.resource_claim_template_name.as_deref().unwrap_or_default();
    let template: ResourceClaimTemplate = objects
        .get(&namespace_name, template)
        .ok_or_else(|| missing_object("resourceclaimtemplate", template))?;
    let refusal_error = |source| SchedulingError::Refused { pod: namespaced_name(pod), source };
    objects.create(&from_template(pod, reference, template)).map_err(refusal_error)
}

fn from_template(
    pod: &Pod,
    reference: &PodResourceClaim,
    template: ResourceClaimTemplate,
) -> ResourceClaim {
    let mut metadata = template.spec.metadata.unwrap_or_default();
    let annotations = metadata.annotations.get_or_insert_default();
    annotations.insert(POD_CLAIM.to_owned(), reference.name.clone());
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    metadata.generate_name = Some(format!("{name}-{}-", reference.name));
    set_owner(&mut metadata, pod);
    ResourceClaim { metadata, spec: template.spec.spec, status: None }
}

/// Sets the pod as the owner of an object.
pub(super) fn set_owner(metadata: &mut ObjectMeta, pod: &Pod) {
    metadata.namespace = Some(namespace(&pod.metadata));
    metadata.owner_references = Some(vec![OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: pod.metadata.name.clone().unwrap_or_default(),
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }]);
}

/// Writes the allocations as the scheduler does: claims first, then the pod.
pub(super) fn bind(
    objects: &Objects,
    pod: Pod,
    (claims, node_allocation): (Vec<ResourceClaim>, NodeAllocation),
) -> Result<ScheduledPod, SchedulingError> {
    let name = namespaced_name(&pod);
    write(objects, pod, (claims, node_allocation))
        .map_err(|source| SchedulingError::Refused { pod: name, source })
}

fn write(
    objects: &Objects,
    mut pod: Pod,
    (claims, node_allocation): (Vec<ResourceClaim>, NodeAllocation),
) -> Result<ScheduledPod, Refusal> {
    let mut reserved_claims = Vec::new();
    for claim in claims {
        let is_claim =
            |(allocated, _): &&(ResourceClaim, _)| allocated.metadata.name == claim.metadata.name;
        let result =
            node_allocation.allocations.iter().find(is_claim).map(|(_, result)| result.clone());
        reserved_claims.push(reserve(objects, &pod, (claim, result))?);
    }
    if let Some((extended_claim, result)) = node_allocation.extended_resource_claim {
        let extended_claim = objects.create(&extended_claim)?;
        pod.status.get_or_insert_default().extended_resource_claim_status =
            Some(PodExtendedResourceClaimStatus {
                request_mappings: extended::mappings(&pod, &extended_claim),
                resource_claim_name: extended_claim.metadata.name.clone().unwrap_or_default(),
            });
        pod = objects.update_status(&pod)?;
        reserved_claims.push(reserve(objects, &pod, (extended_claim, Some(result)))?);
    }
    pod.spec.get_or_insert_default().node_name = Some(node_allocation.node);
    Ok(ScheduledPod { pod: objects.update(&pod)?, claims: reserved_claims })
}

/// Writes a claim's allocation, if it is new, and reserves the claim for the pod.
fn reserve(
    objects: &Objects,
    pod: &Pod,
    (mut claim, result): (ResourceClaim, Option<AllocationResult>),
) -> Result<ResourceClaim, Refusal> {
    let finalizers = claim.metadata.finalizers.get_or_insert_default();
    if !finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
        finalizers.push(FINALIZER.to_owned());
    }
    let status = claim.status.clone();
    claim = objects.update(&claim)?;
    claim.status = status;
    let status = claim.status.get_or_insert_default();
    if result.is_some() {
        status.allocation = result;
    }
    let consumers = status.reserved_for.get_or_insert_default();
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    if !consumers.iter().any(|consumer| consumer.uid == uid) {
        consumers.push(ResourceClaimConsumerReference {
            resource: "pods".to_owned(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            uid,
            api_group: None,
        });
    }
    objects.update_status(&claim)
}

/// Releases a pod's claims. Claims without users are deallocated, and claims owned by the pod are deleted.
pub(super) fn release(objects: &Objects, pod_uid: &str) -> Result<(), Refusal> {
    for mut claim in objects.list::<ResourceClaim>() {
        let owners = claim.metadata.owner_references.iter().flatten();
        let is_owned = owners.into_iter().any(|owner| owner.uid == pod_uid);
        let Some(status) = claim.status.as_mut() else {
            if is_owned {
                delete(objects, &claim)?;
            }
            continue;
        };
        let consumers = status.reserved_for.get_or_insert_default();
        let old_count = consumers.len();
        consumers.retain(|consumer| consumer.uid != pod_uid);
        if consumers.len() == old_count && !is_owned {
            continue;
        }
        if consumers.is_empty() {
            claim.status = None;
            claim = objects.update_status(&claim)?;
            claim.metadata.finalizers = None;
            claim = objects.update(&claim)?;
        } else {
            claim = objects.update_status(&claim)?;
        }
        if is_owned {
            delete(objects, &claim)?;
        }
    }
    Ok(())
}

fn delete(objects: &Objects, claim: &ResourceClaim) -> Result<(), Refusal> {
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    objects.delete::<ResourceClaim>(&namespace(&claim.metadata), name)
}
