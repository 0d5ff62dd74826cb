//! Extended resources that a device class serves (KEP-5004): the scheduler creates a claim for a pod's requests.

use k8s_openapi::{
    api::{
        core::v1::{Container, ContainerExtendedResourceRequest, Node, Pod},
        resource::v1::{
            DeviceClaim, DeviceClass, DeviceRequest, ExactDeviceRequest, ResourceClaim,
            ResourceClaimSpec,
        },
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::ObjectMeta},
};
use windlass_core::selector::Amount;

use super::claims::set_owner;

/// Annotation of claims for extended resources.
const EXTENDED_RESOURCE_CLAIM_ANNOTATION: &str = "resource.kubernetes.io/extended-resource-claim";
/// Prefix of the implicit extended resource of every class. The class name follows.
const IMPLICIT_RESOURCE_PREFIX: &str = "deviceclass.resource.kubernetes.io/";

/// An extended resource that a container requests and a class serves.
struct ServedResource<'a> {
    resource: &'a str,
    class: &'a str,
    count: i64,
    /// Name of the request in the claim.
    request: String,
}

/// Claim for the requested resources that a class serves and no device plugin of the node; `None` if there are none.
pub(super) fn claim(pod: &Pod, node: &Node, classes: &[DeviceClass]) -> Option<ResourceClaim> {
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    let from_plugin = |resource: &str| {
        allocatable
            .and_then(|quantities| quantities.get(resource))
            .is_some_and(|quantity| count(quantity) > 0)
    };
    let served_resources = served_resources(pod, classes);
    let requests: Vec<_> = served_resources
        .iter()
        .filter(|served| !from_plugin(served.resource))
        .map(|served| DeviceRequest {
            name: served.request.clone(),
            exactly: Some(ExactDeviceRequest {
                device_class_name: served.class.to_owned(),
                allocation_mode: Some("ExactCount".to_owned()),
                count: Some(served.count),
                ..ExactDeviceRequest::default()
            }),
            first_available: None,
        })
        .collect();
    if requests.is_empty() {
        return None;
    }
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let mut metadata = ObjectMeta {
        generate_name: Some(format!("{name}-extended-resources-")),
        annotations: Some(
            [(EXTENDED_RESOURCE_CLAIM_ANNOTATION.to_owned(), "true".to_owned())].into(),
        ),
        ..ObjectMeta::default()
    };
    set_owner(&mut metadata, pod);
    let devices = DeviceClaim { requests: Some(requests), ..DeviceClaim::default() };
    Some(ResourceClaim {
        metadata,
        spec: ResourceClaimSpec { devices: Some(devices) },
        status: None,
    })
}

/// Mapping from containers and resources to the claim's requests.
pub(super) fn mappings(pod: &Pod, claim: &ResourceClaim) -> Vec<ContainerExtendedResourceRequest> {
    let requests = claim.spec.devices.iter().flat_map(|devices| devices.requests.iter().flatten());
    let requests: Vec<_> = requests.map(|request| request.name.as_str()).collect();
    let mut mappings = Vec::new();
    for (index, container) in containers(pod).enumerate() {
        for (request_index, (resource, _)) in resources(container).enumerate() {
            let request_name = format!("container-{index}-request-{request_index}");
            if requests.contains(&request_name.as_str()) {
                mappings.push(ContainerExtendedResourceRequest {
                    container_name: container.name.clone(),
                    request_name,
                    resource_name: resource.clone(),
                });
            }
        }
    }
    mappings
}

fn served_resources<'a>(pod: &'a Pod, classes: &'a [DeviceClass]) -> Vec<ServedResource<'a>> {
    let of_container = |(index, container): (usize, &'a Container)| {
        let indexed_resources = resources(container).enumerate();
        indexed_resources.filter_map(move |(request_index, (resource, quantity))| {
            let (class, count) = (class_for(resource, classes)?, count(quantity));
            let request = format!("container-{index}-request-{request_index}");
            (count > 0).then_some(ServedResource { resource, class, count, request })
        })
    };
    containers(pod).enumerate().flat_map(of_container).collect()
}

/// Containers of a pod in the order of their indices: init containers first.
fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers))
}

/// Requests of a container by name, or its limits if it has no requests.
fn resources(container: &Container) -> impl Iterator<Item = (&String, &Quantity)> {
    let resources = container.resources.as_ref();
    resources
        .and_then(|requirements| requirements.requests.as_ref().or(requirements.limits.as_ref()))
        .into_iter()
        .flatten()
}

/// Newest class that serves a resource.
fn class_for<'a>(resource: &str, classes: &'a [DeviceClass]) -> Option<&'a str> {
    let name = |class: &'a DeviceClass| class.metadata.name.as_deref().unwrap_or_default();
    if let Some(class_name) = resource.strip_prefix(IMPLICIT_RESOURCE_PREFIX) {
        return classes.iter().map(name).find(|class| *class == class_name);
    }
    let serves =
        |class: &&DeviceClass| class.spec.extended_resource_name.as_deref() == Some(resource);
    let created_at =
        |class: &&DeviceClass| class.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let newest_class = classes.iter().filter(serves).min_by(|a, b| {
        created_at(b).cmp(&created_at(a)).then_with(|| a.metadata.name.cmp(&b.metadata.name))
    });
    newest_class.map(name)
}

fn count(quantity: &Quantity) -> i64 {
    Amount::parse(&quantity.0).unwrap_or(Amount::ZERO).ceil()
}
