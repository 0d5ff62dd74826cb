//! Steps of an admission in the manager task: requests, the plugin to call, and the record of its
//! answer.

use super::Rejection;
use crate::{
    device::DeviceIds,
    event::Event,
    manager::{Answer, Choice, Manager, Refusal, Request, Undecided, saturating},
    manager_task::ManagerTask,
    plugin::{Plugin, RpcError},
    pod::Container,
    status::PodPhase,
};

/// A choice up to the point where it needs the plugin.
pub(super) enum Step {
    Nothing,
    Take(DeviceIds),
    Ask(Plugin, Box<Undecided>),
}

// === impl Manager, for admission ===

impl Manager {
    /// Requests of a container for plugin resources. A container with requests starts a garbage
    /// collection first.
    pub(super) fn requests(&mut self, pod: &str, container: &Container) -> Vec<Request> {
        self.turn_to_pod(pod);
        let known = container.limits.iter().filter(|(resource, _)| self.is_known(resource));
        let requests: Vec<Request> = known
            .map(|(resource, quantity)| Request {
                pod: pod.to_owned(),
                container: container.name.clone(),
                resource: resource.clone(),
                size: saturating(*quantity),
            })
            .collect();
        if !requests.is_empty() {
            self.collect_garbage();
        }
        requests
    }

    pub(super) fn next_step(&mut self, request: &Request) -> Result<Step, Refusal> {
        let undecided = match self.choose(request)? {
            Choice::Nothing => return Ok(Step::Nothing),
            Choice::Devices(devices) => return Ok(Step::Take(devices)),
            Choice::Undecided(undecided) => undecided,
        };
        let endpoint = self.endpoints.get(&request.resource);
        let endpoint = endpoint.ok_or_else(|| Refusal::NoEndpoint(request.resource.clone()))?;
        if !endpoint.wants_preferred() {
            return self.settle(undecided, &DeviceIds::new()).map(Step::Take);
        }
        let plugin = endpoint.plugin(&request.resource).map_err(Refusal::Preferred)?;
        Ok(Step::Ask(plugin, Box::new(undecided)))
    }

    /// The plugin to call for `Allocate`.
    pub(super) fn plugin(&mut self, resource: &str) -> Result<Result<Plugin, RpcError>, Refusal> {
        let Some(endpoint) = self.endpoints.get(resource) else {
            self.restore_allocated();
            return Err(Refusal::UnknownPlugin(resource.to_owned()));
        };
        Ok(endpoint.plugin(resource))
    }
}

// === impl ManagerTask, for admission ===

impl ManagerTask {
    /// Records the plugin's answer to `Allocate`. An error frees the choice. An answer without a
    /// container response leaks it until a pod is collected.
    pub(super) fn record(
        &mut self,
        request: &Request,
        devices: DeviceIds,
        answer: Result<Option<Answer>, RpcError>,
    ) -> Result<(), Refusal> {
        let outcome = match answer {
            Err(error) => {
                self.manager.restore_allocated();
                Err(Refusal::Allocate(error))
            }
            Ok(None) => Err(Refusal::EmptyResponse),
            Ok(Some(answer)) => {
                self.manager.grant(request, &devices, answer).map_err(Refusal::from)
            }
        };
        self.events.push(match &outcome {
            Ok(()) => Event::allocated(request, devices),
            Err(refusal) => Event::allocate_failed(request, refusal.to_string()),
        });
        if let Err(Refusal::Panic(vanished)) = &outcome {
            self.crash(vanished);
        }
        outcome
    }

    pub(super) fn reject(&mut self, pod: String, rejection: &Rejection) {
        let (reason, message) = (rejection.reason.to_string(), rejection.message.clone());
        let phase = PodPhase::Failed { reason: reason.clone(), message: message.clone() };
        self.manager.set_phase(&pod, phase);
        self.events.push(Event::PodRejected { pod, reason, message });
    }
}
