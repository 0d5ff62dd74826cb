//! Glue between the cluster and an embedded kubelet: converts bound pods, and deletes slices for the kubelet.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::{
    core::v1::{Container, Pod, PodSpec},
    resource::v1::ResourceClaim,
};
use windlass_core::selector::Amount;
use windlass_kubelet_sim::{self as kubelet, ClaimId, Event, EventReader, PodClaim};

use crate::{api::Objects, cluster::ScheduledPod};

/// Converts a bound pod with its claims to the kubelet's pod.
pub fn pod(scheduled_pod: &ScheduledPod) -> kubelet::Pod {
    let ScheduledPod { pod, claims } = scheduled_pod;
    let spec = pod.spec.clone().unwrap_or_default();
    let (spec_claims, extended_claim) =
        (claims_in_spec(pod, &spec, claims), extended_resource_claim(pod, claims));
    let by_claim = resources_of_claims(pod);
    let to_kubelet = |container: &Container| kubelet::Container {
        name: container.name.clone(),
        limits: limits(container, &by_claim),
    };
    let kubelet_pod = kubelet::Pod::new(pod.metadata.name.clone().unwrap_or_default());
    let mut kubelet_pod = kubelet::Pod {
        namespace: pod.metadata.namespace.clone().unwrap_or_else(|| kubelet_pod.namespace.clone()),
        uid: pod.metadata.uid.clone().unwrap_or_else(|| kubelet_pod.uid.clone()),
        claims: spec_claims.into_iter().chain(extended_claim).collect(),
        ..kubelet_pod
    };
    for container in spec.init_containers.iter().flatten() {
        let is_sidecar = container.restart_policy.as_deref() == Some("Always");
        let container = to_kubelet(container);
        kubelet_pod = if is_sidecar {
            kubelet_pod.sidecar(container)
        } else {
            kubelet_pod.init_container(container)
        };
    }
    kubelet_pod.containers = spec.containers.iter().map(to_kubelet).collect();
    kubelet_pod
}

/// Deletes a node's slices for each event `SlicesWiped` of its kubelet, until that kubelet stops.
pub async fn delete_slices_at_kubelet_start(node: &str, calls: &EventReader, objects: &Objects) {
    let mut position = 0;
    loop {
        let events = calls.next_events(&mut position).await;
        if events.is_empty() {
            return;
        }
        for event in events {
            match event {
                Event::SlicesWiped { driver: None } => objects.delete_all_slices(node),
                Event::SlicesWiped { driver: Some(driver) } => {
                    objects.wipe_driver_slices(node, &driver)
                }
                _ => 0,
            };
        }
    }
}

/// Claims that the pod's specification names, with the containers that use each.
fn claims_in_spec(pod: &Pod, spec: &PodSpec, claims: &[ResourceClaim]) -> Vec<PodClaim> {
    let statuses =
        pod.status.iter().flat_map(|status| status.resource_claim_statuses.iter().flatten());
    let generated: BTreeMap<_, _> = statuses
        .map(|status| (status.name.as_str(), status.resource_claim_name.as_deref()))
        .collect();
    let references = spec.resource_claims.iter().flatten();
    let claim_of = |reference: &k8s_openapi::api::core::v1::PodResourceClaim| {
        let name = reference.resource_claim_name.as_deref();
        let name = name.or_else(|| generated.get(reference.name.as_str()).copied().flatten())?;
        let claim = pod_claim(&reference.name, find(claims, name)?);
        Some(containers(spec).fold(claim, add_uses))
    };
    references.filter_map(claim_of).collect()
}

/// Adds the uses of the claim by one container.
fn add_uses(mut claim: PodClaim, container: &Container) -> PodClaim {
    let resources = container.resources.iter();
    let references = resources.flat_map(|resources| resources.claims.iter().flatten());
    for reference in
        references.filter(|reference| reference.name == claim.name).cloned().collect::<Vec<_>>()
    {
        claim = match reference.request {
            Some(request) => claim.request_used_by(request, &container.name),
            None => claim.used_by(&container.name),
        };
    }
    claim
}

/// The claim that the scheduler generated for extended resources.
fn extended_resource_claim(pod: &Pod, claims: &[ResourceClaim]) -> Option<PodClaim> {
    let status = pod.status.as_ref()?.extended_resource_claim_status.as_ref()?;
    let claim = find(claims, &status.resource_claim_name)?;
    let claim = pod_claim(&status.resource_claim_name, claim).for_extended_resources();
    let mappings = status.request_mappings.iter();
    Some(mappings.fold(claim, |claim, mapping| {
        claim.request_used_by(&mapping.request_name, &mapping.container_name)
    }))
}

fn find<'a>(claims: &'a [ResourceClaim], name: &str) -> Option<&'a ResourceClaim> {
    claims.iter().find(|claim| claim.metadata.name.as_deref() == Some(name))
}

/// Converts a claim to the kubelet's form, under its name within the pod.
fn pod_claim(name: &str, claim: &ResourceClaim) -> PodClaim {
    let id = ClaimId {
        namespace: claim.metadata.namespace.clone().unwrap_or_default(),
        name: claim.metadata.name.clone().unwrap_or_default(),
        uid: claim.metadata.uid.clone().unwrap_or_default(),
    };
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    let devices = allocation.and_then(|allocation| allocation.devices.as_ref());
    let results = devices.iter().flat_map(|devices| devices.results.iter().flatten());
    results.fold(PodClaim::new(name, id), |claim, result| claim.driver(&result.driver))
}

/// Limits of resources that device plugins serve: extended resources without those that a claim serves.
fn limits(container: &Container, by_claim: &BTreeSet<(String, String)>) -> kubelet::pod::Limits {
    let resources = container.resources.as_ref();
    let quantities = resources
        .and_then(|requirements| requirements.limits.as_ref().or(requirements.requests.as_ref()));
    let from_plugins = quantities.into_iter().flatten().filter(|(resource, _)| {
        resource.contains('/') && !by_claim.contains(&(container.name.clone(), (*resource).clone()))
    });
    let limit = |(resource, quantity): (&String, &_)| (resource.clone(), count(quantity));
    from_plugins.map(limit).filter(|(_, count)| *count > 0).collect()
}

fn count(quantity: &k8s_openapi::apimachinery::pkg::api::resource::Quantity) -> u64 {
    let amount = Amount::parse(&quantity.0).unwrap_or(Amount::ZERO).ceil();
    u64::try_from(amount).unwrap_or(0)
}

/// Pairs of container and extended resource that a claim serves.
fn resources_of_claims(pod: &Pod) -> BTreeSet<(String, String)> {
    let status =
        pod.status.as_ref().and_then(|status| status.extended_resource_claim_status.as_ref());
    let mappings = status.into_iter().flat_map(|status| &status.request_mappings);
    mappings
        .map(|mapping| (mapping.container_name.clone(), mapping.resource_name.clone()))
        .collect()
}

fn containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers.iter().flatten().chain(&spec.containers)
}
