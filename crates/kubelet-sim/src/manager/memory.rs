//! The state as a checkpoint document and back.

use prost::Message as _;
use tokio::time::Instant;
use windlass_kubelet_api::{
    checkpoint::{Checkpoint, PodDevices},
    deviceplugin::ContainerAllocateResponse,
};

use super::{Endpoint, Held, Manager, Request};
use crate::{device::DeviceIds, grant::Grant};

impl Manager {
    /// The document. An empty list of holdings is Go's nil slice.
    pub(crate) fn to_checkpoint(&self) -> Checkpoint {
        let pods: Vec<PodDevices> = self
            .holdings
            .iter()
            .map(|(pod, container, resource, held)| PodDevices {
                pod_uid: pod.to_owned(),
                container_name: container.to_owned(),
                resource_name: resource.to_owned(),
                device_ids: held.by_numa.clone(),
                allocate_response: held.response.clone(),
            })
            .collect();
        let registered = self
            .healthy
            .iter()
            .map(|(resource, ids)| (resource.clone(), Some(ids.iter().cloned().collect())))
            .collect();
        Checkpoint { pods: (!pods.is_empty()).then_some(pods), registered: Some(registered) }
    }

    /// Restores holdings, and resources without devices. The capacity of those is 0 until the
    /// plugin registers again. An undecodable answer is left out.
    pub(crate) fn restore(&mut self, checkpoint: Checkpoint, now: Instant) {
        for entry in checkpoint.pods.into_iter().flatten() {
            let Ok(response) = ContainerAllocateResponse::decode(&*entry.allocate_response) else {
                continue;
            };
            let grant = Grant::from_proto(&response);
            let request = Request {
                pod: entry.pod_uid,
                container: entry.container_name,
                resource: entry.resource_name,
                size: 0,
            };
            let held = Held::new(entry.device_ids, entry.allocate_response, grant);
            self.holdings.insert(&request, held);
        }
        self.restore_allocated();
        for resource in checkpoint.registered.unwrap_or_default().into_keys() {
            self.left_over.remove(&resource);
            self.healthy.insert(resource.clone(), DeviceIds::new());
            self.unhealthy.insert(resource.clone(), DeviceIds::new());
            self.endpoints.insert(resource, Endpoint::remembered(now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{GPU, device, hold, ids, manager},
        *,
    };

    #[tokio::test]
    async fn holdings_survive_and_devices_wait_for_the_plugin() {
        let mut before = manager(vec![device("a", &[]), device("b", &[])]);
        hold(&mut before, "pod", "c", "a");
        let document = before.to_checkpoint();

        let mut after = Manager::default();
        after.restore(document.clone(), Instant::now());
        assert_eq!(after.holdings, before.holdings);
        assert_eq!(after.allocated[GPU], ids("a"));
        assert_eq!(after.counts()[GPU], (0, 0));
        assert_eq!(after.to_checkpoint().pods, document.pods);
    }

    #[test]
    fn an_empty_state_is_gos_nil_slice() {
        assert_eq!(manager(vec![]).to_checkpoint().pods, None);
    }
}
