//! Client of the kubelet's pod resources API.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::Duration,
};

use tonic::transport::Channel;
use windlass_core::replica::ReplicaId;
use windlass_host::deadline;
use windlass_kubelet_api::{
    podresources::{
        self, AllocatableResourcesRequest, ContainerDevices, ListPodResourcesRequest, PodResources,
        pod_resources_lister_client::PodResourcesListerClient,
    },
    socket::{SocketError, SocketIdentity, SocketPath},
};

use super::{Holder, HoldersByDevice};

/// Error of a call.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// The kubelet cannot be reached.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The kubelet returned an error.
    #[error("the kubelet refused to list pod resources: {}", .0.message())]
    Refused(#[from] tonic::Status),
    /// The kubelet did not answer.
    #[error("the kubelet did not list pod resources within {DEADLINE:?}")]
    DeadlineExceeded,
}

/// Deadline of a call. A scrape waits for it, usually for ten seconds at most.
const DEADLINE: Duration = Duration::from_secs(1);

/// Calls the kubelet in this folder for the holders of devices.
pub async fn holders(kubelet_dir: &Path) -> Result<HoldersByDevice, ListError> {
    Ok(holders_by_device(pods(kubelet_dir).await?))
}

/// Ids that the kubelet may allocate, held or not, by resource: their plugin reports them as healthy.
pub async fn allocatable_ids(
    kubelet_dir: &Path,
) -> Result<BTreeMap<String, BTreeSet<String>>, ListError> {
    let answer = with_deadline(async {
        let request = AllocatableResourcesRequest {};
        Ok(lister(kubelet_dir).await?.get_allocatable_resources(request).await?)
    });
    let mut by_resource: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for ContainerDevices { resource_name, device_ids, .. } in answer.await?.into_inner().devices {
        by_resource.entry(resource_name).or_default().extend(device_ids);
    }
    Ok(by_resource)
}

/// Names of DRA drivers of which a container has a device.
pub async fn dra_drivers(kubelet_dir: &Path) -> Result<BTreeSet<String>, ListError> {
    let pods = pods(kubelet_dir).await?;
    let containers = pods.iter().flat_map(|pod| &pod.containers);
    let claims = containers.flat_map(|container| &container.dynamic_resources);
    let devices = claims.flat_map(|claim| &claim.claim_resources);
    Ok(devices.map(|device| device.driver_name.clone()).collect())
}

/// Pods with their resources, as the kubelet lists them.
pub async fn pods(kubelet_dir: &Path) -> Result<Vec<PodResources>, ListError> {
    let answer = with_deadline(async {
        Ok(lister(kubelet_dir).await?.list(ListPodResourcesRequest {}).await?)
    });
    Ok(answer.await?.into_inner().pod_resources)
}

/// Dials for each call, because a restarted kubelet has a new socket.
async fn lister(kubelet_dir: &Path) -> Result<PodResourcesListerClient<Channel>, SocketError> {
    Ok(PodResourcesListerClient::new(socket(kubelet_dir)?.dial().await?))
}

/// Identity of the kubelet's socket. A restarted kubelet creates a new one.
pub(super) fn identity(kubelet_dir: &Path) -> Option<SocketIdentity> {
    socket(kubelet_dir).ok()?.identity()
}

fn socket(kubelet_dir: &Path) -> Result<SocketPath, SocketError> {
    SocketPath::new(kubelet_dir.join(podresources::SOCKET_DIR).join(podresources::SOCKET_NAME))
}

async fn with_deadline<T>(
    answer: impl Future<Output = Result<T, ListError>>,
) -> Result<T, ListError> {
    deadline::timeout(DEADLINE, answer).await.unwrap_or(Err(ListError::DeadlineExceeded))
}

/// Holders of each device. The kubelet repeats a device for each of its NUMA nodes.
pub fn holders_by_device(pods: Vec<PodResources>) -> HoldersByDevice {
    let mut holders = HoldersByDevice::new();
    for pod in pods {
        for container in pod.containers {
            for devices in container.devices {
                for id in &devices.device_ids {
                    let (device, replica) = split_id(id);
                    let Ok(device) = device.parse() else { continue };
                    let holder = Holder {
                        resource: devices.resource_name.clone(),
                        replica,
                        namespace: pod.namespace.clone(),
                        pod: pod.name.clone(),
                        container: container.name.clone(),
                    };
                    holders.entry(device).or_default().insert(holder);
                }
            }
        }
    }
    holders
}

/// Pods of each claim, by the namespace and name of the claim.
pub type PodsByClaim = BTreeMap<(String, String), BTreeSet<String>>;

/// Pods of each claim.
pub fn pods_by_claim(pods: &[PodResources]) -> PodsByClaim {
    let mut by_claim = PodsByClaim::new();
    for pod in pods {
        for claim in pod.containers.iter().flat_map(|container| &container.dynamic_resources) {
            let claim_key = (claim.claim_namespace.clone(), claim.claim_name.clone());
            by_claim.entry(claim_key).or_default().insert(pod.name.clone());
        }
    }
    by_claim
}

/// Device and number of a replica's id; other ids are the device itself.
pub(super) fn split_id(id: &str) -> (&str, Option<u32>) {
    ReplicaId::split(id).map_or((id, None), |(device, number)| (device, Some(number)))
}

#[cfg(test)]
mod tests {
    use windlass_kubelet_api::podresources::ContainerResources;

    use super::*;

    fn pod(name: &str, ids: &[&str]) -> PodResources {
        let devices = ids.iter().map(|id| ContainerDevices {
            resource_name: "nvidia.com/gpu".to_owned(),
            device_ids: vec![(*id).to_owned()],
            topology: None,
        });
        let container = ContainerResources {
            name: "main".to_owned(),
            devices: devices.collect(),
            ..ContainerResources::default()
        };
        PodResources {
            name: name.to_owned(),
            namespace: "default".to_owned(),
            containers: vec![container],
        }
    }

    #[test]
    fn replicas_lead_to_their_device_and_a_device_on_two_nodes_is_held_once() {
        let holders_by_id = holders_by_device(vec![
            pod("whole", &["GPU-a", "GPU-a"]),
            pod("left", &["GPU-b::0"]),
            pod("right", &["GPU-b::11"]),
        ]);
        let holders_of = |id: &str| {
            let holders = holders_by_id[id].iter();
            holders.map(|holder| (&*holder.pod, holder.replica)).collect::<Vec<_>>()
        };
        assert_eq!(holders_of("GPU-a"), [("whole", None)]);
        assert_eq!(holders_of("GPU-b"), [("left", Some(0)), ("right", Some(11))]);
    }

    #[test]
    fn only_a_number_after_two_colons_is_a_replica() {
        assert_eq!(split_id("GPU-a::7"), ("GPU-a", Some(7)));
        for whole in ["GPU-a", "GPU-a::", "GPU-a::x", "0000:1b:00.0"] {
            assert_eq!(split_id(whole), (whole, None));
        }
    }
}
