//! Steps of an admission in the manager task: list the requests, plan the calls, record the answers.

use super::Rejection;
use crate::{
    device::DeviceIds,
    event::Event,
    manager::{
        Choice, ContainerResponse, Manager, ManagerError, PendingChoice, Request, device_count,
    },
    manager_task::ManagerTask,
    plugin::{Plugin, RpcError},
    pod::Container,
    status::PodPhase,
};

/// Next step for a request.
pub(super) enum AllocationStep {
    /// The request needs no `Allocate`.
    NotNeeded,
    /// Call `Allocate` with these devices.
    Allocate(DeviceIds),
    /// Call `GetPreferredAllocation`, then complete the choice.
    GetPreferredAllocation(Plugin, Box<PendingChoice>),
}

// === impl Manager, for admission ===

impl Manager {
    /// Requests of a container for the resources that the device manager knows. Makes its pod the owner
    /// of the reusable devices. Collects garbage if there are requests.
    pub(super) fn requests(&mut self, pod: &str, container: &Container) -> Vec<Request> {
        self.switch_reusable_devices(pod);
        let limits = container.limits.iter().filter(|(resource, _)| self.is_known(resource));
        let requests: Vec<Request> = limits
            .map(|(resource, quantity)| Request {
                pod: pod.to_owned(),
                container: container.name.clone(),
                resource: resource.clone(),
                size: device_count(*quantity),
            })
            .collect();
        if !requests.is_empty() {
            self.collect_garbage();
        }
        requests
    }

    /// Chooses devices, and decides whether the plugin has to state its preference.
    pub(super) fn next_step(&mut self, request: &Request) -> Result<AllocationStep, ManagerError> {
        let choice = match self.choose(request)? {
            Choice::NotNeeded => return Ok(AllocationStep::NotNeeded),
            Choice::Devices(devices) => return Ok(AllocationStep::Allocate(devices)),
            Choice::Pending(choice) => choice,
        };
        let endpoint = self.endpoints.get(&request.resource);
        let endpoint =
            endpoint.ok_or_else(|| ManagerError::NoEndpoint(request.resource.clone()))?;
        if !endpoint.has_preferred_allocation() {
            let no_preference = DeviceIds::new();
            return self.complete(choice, &no_preference).map(AllocationStep::Allocate);
        }
        let plugin = endpoint.plugin(&request.resource).map_err(ManagerError::Preferred)?;
        Ok(AllocationStep::GetPreferredAllocation(plugin, Box::new(choice)))
    }

    /// The plugin to call for `Allocate`. The inner error is that of a stopped endpoint. If the
    /// endpoint is missing, frees the chosen devices and fails.
    pub(super) fn plugin(
        &mut self,
        resource: &str,
    ) -> Result<Result<Plugin, RpcError>, ManagerError> {
        let Some(endpoint) = self.endpoints.get(resource) else {
            self.recompute_allocated();
            return Err(ManagerError::UnknownPlugin(resource.to_owned()));
        };
        Ok(endpoint.plugin(resource))
    }
}

// === impl ManagerTask, for admission ===

impl ManagerTask {
    /// Records the plugin's answer to `Allocate`. A failed call frees the chosen devices. An answer
    /// without a container response leaves them in use, as in the real kubelet, until a garbage
    /// collection frees the devices of any pod.
    pub(super) fn record(
        &mut self,
        request: &Request,
        devices: DeviceIds,
        response: Result<Option<ContainerResponse>, RpcError>,
    ) -> Result<(), ManagerError> {
        let outcome = match response {
            Err(error) => {
                self.manager.recompute_allocated();
                Err(ManagerError::Allocate(error))
            }
            Ok(None) => Err(ManagerError::EmptyResponse),
            Ok(Some(response)) => self
                .manager
                .record_allocation(request, &devices, response)
                .map_err(ManagerError::from),
        };
        self.events.push(match &outcome {
            Ok(()) => Event::allocated(request, devices),
            Err(error) => Event::allocate_failed(request, error.to_string()),
        });
        // The real kubelet panics if the plugin no longer lists an allocated device.
        if let Err(ManagerError::Panic(unlisted)) = &outcome {
            self.crash(unlisted);
        }
        outcome
    }

    /// Records a rejection in the pod's phase and the event log.
    pub(super) fn reject(&mut self, pod: String, rejection: &Rejection) {
        let (reason, message) = (rejection.reason.to_string(), rejection.message.clone());
        let phase = PodPhase::Failed { reason: reason.clone(), message: message.clone() };
        self.manager.set_phase(&pod, phase);
        self.events.push(Event::PodRejected { pod, reason, message });
    }
}
