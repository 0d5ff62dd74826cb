//! Admission of a pod: align and allocate for each container, then check that the pod fits the node.
//!
//! ```text
//!  topology scope `pod`: align the pod
//!  for each container, init containers first
//!    topology scope `container`: align the container
//!    for each resource: choose ─(GetPreferredAllocation)─> Allocate ─> record
//!    write the checkpoint
//!  check that the pod's requests fit the node
//! ```
//!
//! With topology policy `none`, nothing is aligned. Each step is a function in the manager task. Calls
//! to the plugin happen between two steps, where the real manager unlocks its mutex.

mod outcome;
mod rejection;
mod steps;

pub use outcome::{Admission, ContainerAdmission, ContainerAllocation, PreferredAllocationCall};
pub use rejection::{Rejection, RejectionReason};

use self::{outcome::PreferredAllocationCalls, rejection::RejectionCause, steps::AllocationStep};
use crate::{
    device::DeviceIds,
    event::Event,
    manager::{Alignment, Manager, ManagerError, Request, UnlistedDevice},
    manager_task::{ManagerHandle, ManagerTask},
    pod::{Container, Pod},
    status::PodPhase,
    topology::{TopologyPolicy, TopologyScope},
};

/// An admission in progress.
struct AdmissionRun<'a> {
    handle: &'a ManagerHandle,
    pod: &'a Pod,
    preferred_calls: PreferredAllocationCalls,
}

/// Admits or rejects a pod, and records the outcome. The caller admits one pod at a time.
pub(crate) async fn admit(handle: &ManagerHandle, pod: Pod) -> Result<Admission, Rejection> {
    let pod_copy = pod.clone();
    handle.update(move |task| task.manager.add_pod(pod_copy)).await?;
    let mut admission =
        AdmissionRun { handle, pod: &pod, preferred_calls: PreferredAllocationCalls::new() };
    let outcome = admission.run().await;
    let preferred_calls = admission.preferred_calls;
    let uid = pod.uid.clone();
    match outcome {
        Ok(()) => {
            let complete = move |task: &mut ManagerTask| {
                task.manager.set_phase(&uid, PodPhase::Admitted);
                task.events.push(Event::PodAdmitted { pod: uid });
                Admission::of(&task.manager, &pod, preferred_calls)
            };
            Ok(handle.update(complete).await?)
        }
        Err(cause) => {
            let rejection = cause.into_rejection();
            let rejection_copy = rejection.clone();
            handle.update(move |task| task.reject(uid, &rejection_copy)).await.unwrap_or(());
            Err(rejection)
        }
    }
}

/// Allocates devices for one container outside of an admission. The real kubelet does so at the start
/// of a container without allocated devices.
pub(crate) async fn allocate_missing(
    handle: &ManagerHandle,
    pod: &Pod,
    container: &Container,
) -> Result<(), ManagerError> {
    AdmissionRun { handle, pod, preferred_calls: PreferredAllocationCalls::new() }
        .allocate(container)
        .await
}

// === impl AdmissionRun ===

impl AdmissionRun<'_> {
    async fn run(&mut self) -> Result<(), RejectionCause> {
        let read = |task: &ManagerTask| (task.config.topology, task.config.topology_scope);
        let (policy, scope) = self.handle.read(read).await?;
        let is_aligned = policy != TopologyPolicy::None;
        if is_aligned && scope == TopologyScope::Pod {
            let pod = self.pod.clone();
            self.align(move |manager| manager.align_pod(&pod)).await?;
        }
        for container in self.pod.in_admission_order() {
            if is_aligned && scope == TopologyScope::Container {
                let (pod, container) = (self.pod.clone(), container.clone());
                self.align(move |manager| manager.align_container(&pod, &container)).await?;
            }
            self.allocate(container).await?;
        }
        let pod = self.pod.clone();
        self.handle
            .read(move |task| task.manager.check_fits(&pod))
            .await?
            .map_err(RejectionCause::Insufficient)
    }

    /// Runs a decision of the topology manager.
    async fn align(
        &self,
        decide: impl FnOnce(&mut Manager) -> Result<Alignment, UnlistedDevice> + Send + 'static,
    ) -> Result<(), RejectionCause> {
        let decide_or_crash = |task: &mut ManagerTask| {
            let decision = decide(&mut task.manager);
            decision.inspect_err(|unlisted| task.crash(unlisted))
        };
        match self.handle.update(decide_or_crash).await?.map_err(ManagerError::from)? {
            Alignment::Admitted => Ok(()),
            Alignment::Misaligned => Err(RejectionCause::Misaligned),
        }
    }

    /// Allocates all resources of a container, and writes the checkpoint if devices were allocated.
    async fn allocate(&mut self, container: &Container) -> Result<(), ManagerError> {
        let (pod, container_copy) = (self.pod.uid.clone(), container.clone());
        let requests = move |task: &mut ManagerTask| task.manager.requests(&pod, &container_copy);
        let mut changed = false;
        for request in self.handle.update(requests).await? {
            let devices = self.choose(&request).await?;
            if !devices.is_empty() {
                self.call_allocate(request, devices).await?;
                changed = true;
            }
        }
        let (pod, name) = (self.pod.uid.clone(), container.name.clone());
        let role = self.pod.init_role(&name);
        let finish = move |task: &mut ManagerTask| {
            if changed {
                task.write_checkpoint()?;
            }
            task.manager.update_reusable(&pod, &name, role);
            Ok(())
        };
        self.handle.update(finish).await?
    }

    /// Chooses the devices for a request, with the plugin's preference if the plugin states one. Empty
    /// if no `Allocate` is needed.
    async fn choose(&mut self, request: &Request) -> Result<DeviceIds, ManagerError> {
        let request_copy = request.clone();
        match self.handle.update(move |task| task.manager.next_step(&request_copy)).await?? {
            AllocationStep::NotNeeded => Ok(DeviceIds::new()),
            AllocationStep::Allocate(devices) => Ok(devices),
            AllocationStep::GetPreferredAllocation(plugin, choice) => {
                let mut call = PreferredAllocationCall::from_choice(&choice);
                plugin
                    .get_preferred_allocation(&mut call)
                    .await
                    .map_err(ManagerError::Preferred)?;
                let key = (request.container.clone(), request.resource.clone());
                self.preferred_calls.insert(key, call.clone());
                let complete = move |task: &mut ManagerTask| {
                    let preferred = call.preferred.iter().cloned().collect();
                    task.events.push(Event::preferred_allocation_received(&choice.request, call));
                    task.manager.complete(*choice, &preferred)
                };
                self.handle.update(complete).await?
            }
        }
    }

    /// Calls `Allocate` and records the outcome.
    async fn call_allocate(
        &self,
        request: Request,
        devices: DeviceIds,
    ) -> Result<(), ManagerError> {
        let resource = request.resource.clone();
        let response =
            match self.handle.update(move |task| task.manager.plugin(&resource)).await?? {
                Ok(plugin) => plugin.allocate(&devices).await,
                Err(stopped) => Err(stopped),
            };
        self.handle.update(move |task| task.record(&request, devices, response)).await?
    }
}
