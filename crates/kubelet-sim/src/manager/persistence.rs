//! Conversion of the state to the checkpoint, and back.

use prost::Message as _;
use tokio::time::Instant;
use windlass_kubelet_api::{
    checkpoint::{Checkpoint, PodDevices},
    deviceplugin::ContainerAllocateResponse,
};

use super::{Endpoint, Holding, Manager, Request};
use crate::{device::DeviceIds, grant::RunContainerOptions};

impl Manager {
    /// Converts the state to a checkpoint. Without holdings, the list of pods is Go's nil slice.
    pub(crate) fn to_checkpoint(&self) -> Checkpoint {
        let pods: Vec<PodDevices> = self
            .holdings
            .iter()
            .map(|(pod, container, resource, holding)| PodDevices {
                pod_uid: pod.to_owned(),
                container_name: container.to_owned(),
                resource_name: resource.to_owned(),
                device_ids: holding.by_numa.clone(),
                allocate_response: holding.response.clone(),
            })
            .collect();
        let registered = self
            .healthy
            .iter()
            .map(|(resource, ids)| (resource.clone(), Some(ids.iter().cloned().collect())))
            .collect();
        Checkpoint { pods: (!pods.is_empty()).then_some(pods), registered: Some(registered) }
    }

    /// Restores the holdings, and the names of the resources. Each resource has capacity 0 until its
    /// plugin lists devices again. A holding with an undecodable answer is left out.
    pub(crate) fn restore(&mut self, checkpoint: Checkpoint, now: Instant) {
        for entry in checkpoint.pods.into_iter().flatten() {
            let Ok(response) = ContainerAllocateResponse::decode(&*entry.allocate_response) else {
                continue;
            };
            let run_options = RunContainerOptions::from_proto(&response);
            let request = Request {
                pod: entry.pod_uid,
                container: entry.container_name,
                resource: entry.resource_name,
                size: 0,
            };
            let holding = Holding::new(entry.device_ids, entry.allocate_response, run_options);
            self.holdings.insert(&request, holding);
        }
        self.recompute_allocated();
        for resource in checkpoint.registered.unwrap_or_default().into_keys() {
            self.status_only_capacities.remove(&resource);
            self.healthy.insert(resource.clone(), DeviceIds::new());
            self.unhealthy.insert(resource.clone(), DeviceIds::new());
            self.endpoints.insert(resource, Endpoint::from_checkpoint(now));
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
    async fn a_restored_manager_has_its_holdings_and_no_devices() {
        let mut before = manager(vec![device("a", &[]), device("b", &[])]);
        hold(&mut before, "pod", "c", "a");
        let checkpoint = before.to_checkpoint();

        let mut after = Manager::default();
        after.restore(checkpoint.clone(), Instant::now());
        assert_eq!(after.holdings, before.holdings);
        assert_eq!(after.allocated[GPU], ids("a"));
        assert_eq!(after.counts()[GPU], (0, 0));
        assert_eq!(after.to_checkpoint().pods, checkpoint.pods);
    }

    #[test]
    fn an_empty_state_is_gos_nil_slice() {
        assert_eq!(manager(vec![]).to_checkpoint().pods, None);
    }
}
