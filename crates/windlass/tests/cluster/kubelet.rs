//! The kubelet: its pod resources API, and its restart.

use std::{collections::BTreeMap, env, process::Command};

use windlass_kubelet_api::{
    podresources::{
        AllocatableResourcesRequest, ListPodResourcesRequest,
        pod_resources_lister_client::PodResourcesListerClient,
    },
    socket::SocketPath,
};

/// Variable with the program that restarts the kubelet. It gets no arguments.
const RESTART: &str = "WINDLASS_E2E_RESTART_KUBELET";

const POD_RESOURCES: &str = "/var/lib/kubelet/pod-resources/kubelet.sock";

/// Devices of each pod.
pub(crate) type Holdings = BTreeMap<String, Vec<String>>;

/// Restarts the kubelet. Returns false, and prints a notice, if the variable is not set.
#[expect(clippy::print_stderr, reason = "a skipped part is reported")]
pub(crate) fn restart() -> bool {
    let Some(restart) = env::var_os(RESTART) else {
        eprintln!("SKIPPED: set {RESTART} to restart the kubelet as well");
        return false;
    };
    let (status, program) = (Command::new(&restart).status(), restart.display());
    let status =
        status.unwrap_or_else(|error| panic!("{RESTART} names no program: {program}: {error}"));
    assert!(status.success(), "{program}: {status}");
    true
}

/// Client of the kubelet's pod resources; `None` while the kubelet restarts.
async fn pod_resources() -> Option<PodResourcesListerClient<tonic::transport::Channel>> {
    let socket = SocketPath::new(POD_RESOURCES).expect("short");
    socket.dial().await.ok().map(PodResourcesListerClient::new)
}

/// Number of devices of a resource that the kubelet can allocate or has allocated.
pub(crate) async fn allocatable(resource: &str) -> Option<usize> {
    let request = AllocatableResourcesRequest {};
    let answer = pod_resources().await?.get_allocatable_resources(request).await.ok()?;
    let devices = answer.into_inner().devices;
    Some(devices.iter().filter(|device| device.resource_name == resource).count())
}

pub(crate) async fn holdings() -> Option<Holdings> {
    let answer = pod_resources().await?.list(ListPodResourcesRequest {}).await.ok()?;
    let mut holdings = Holdings::new();
    for pod in answer.into_inner().pod_resources {
        let devices = pod.containers.into_iter().flat_map(|container| container.devices);
        let mut ids: Vec<_> = devices.flat_map(|device| device.device_ids).collect();
        ids.sort();
        if !ids.is_empty() {
            holdings.insert(pod.name, ids);
        }
    }
    Some(holdings)
}
