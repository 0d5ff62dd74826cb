//! Admission of a pod: a hint and devices for each container, then the node's own count.
//!
//! ```text
//!  for each container, init containers first (with policies other than `none`: hint first)
//!    for each resource: choose ─(ask the plugin)─> Allocate ─> record
//!    checkpoint
//!  then: does the pod fit the node?
//! ```
//!
//! Each line is one call to the manager task. Calls to the plugin lie between two of them: the real
//! manager unlocks its mutex there.

mod outcome;
mod rejection;
mod steps;

pub use outcome::{Admission, Allotment, ContainerAdmission, Question};
pub use rejection::{Reason, Rejection};

use self::{outcome::Questions, rejection::Denial, steps::Step};
use crate::{
    device::DeviceIds,
    event::Event,
    manager::{Alignment, Manager, Refusal, Request, Vanished},
    manager_task::{ManagerHandle, ManagerTask},
    pod::{Container, Pod},
    status::PodPhase,
    topology::{TopologyPolicy, TopologyScope},
};

/// Admission of one pod.
struct Admitting<'a> {
    handle: &'a ManagerHandle,
    pod: &'a Pod,
    questions: Questions,
}

/// Admits a pod, or finds the reason for its rejection, and records the outcome. The caller admits
/// one pod at a time.
pub(crate) async fn admit(handle: &ManagerHandle, pod: Pod) -> Result<Admission, Rejection> {
    let bound = pod.clone();
    handle.update(move |task| task.manager.add_pod(bound)).await?;
    let mut admitting = Admitting { handle, pod: &pod, questions: Questions::new() };
    let outcome = admitting.serve().await;
    let questions = admitting.questions;
    let uid = pod.uid.clone();
    match outcome {
        Ok(()) => {
            let settle = move |task: &mut ManagerTask| {
                task.manager.set_phase(&uid, PodPhase::Admitted);
                task.events.push(Event::PodAdmitted { pod: uid });
                Admission::of(&task.manager, &pod, questions)
            };
            Ok(handle.update(settle).await?)
        }
        Err(denial) => {
            let rejection = denial.into_rejection();
            let told = rejection.clone();
            handle.update(move |task| task.reject(uid, &told)).await.unwrap_or(());
            Err(rejection)
        }
    }
}

/// Allocates devices for one container outside of an admission. The real kubelet does so when a
/// container that starts has no allocation.
pub(crate) async fn allocate_again(
    handle: &ManagerHandle,
    pod: &Pod,
    container: &Container,
) -> Result<(), Refusal> {
    Admitting { handle, pod, questions: Questions::new() }.allocate(container).await
}

// === impl Admitting ===

impl Admitting<'_> {
    async fn serve(&mut self) -> Result<(), Denial> {
        let read = |task: &ManagerTask| (task.config.topology, task.config.topology_scope);
        let (policy, scope) = self.handle.read(read).await?;
        let hints_wanted = policy != TopologyPolicy::None;
        if hints_wanted && scope == TopologyScope::Pod {
            let pod = self.pod.clone();
            self.align(move |manager| manager.align_pod(&pod)).await?;
        }
        for container in self.pod.in_admission_order() {
            if hints_wanted && scope == TopologyScope::Container {
                let (pod, asking) = (self.pod.clone(), container.clone());
                self.align(move |manager| manager.align_container(&pod, &asking)).await?;
            }
            self.allocate(container).await?;
        }
        let pod = self.pod.clone();
        self.handle.read(move |task| task.manager.fits(&pod)).await?.map_err(Denial::Insufficient)
    }

    async fn align(
        &self,
        decide: impl FnOnce(&mut Manager) -> Result<Alignment, Vanished> + Send + 'static,
    ) -> Result<(), Denial> {
        let decide = |task: &mut ManagerTask| {
            let decision = decide(&mut task.manager);
            decision.inspect_err(|vanished| task.crash(vanished))
        };
        match self.handle.update(decide).await?.map_err(Refusal::from)? {
            Alignment::Admitted => Ok(()),
            Alignment::Misaligned => Err(Denial::Misaligned),
        }
    }

    async fn allocate(&mut self, container: &Container) -> Result<(), Refusal> {
        let (pod, asking) = (self.pod.uid.clone(), container.clone());
        let requests = move |task: &mut ManagerTask| task.manager.requests(&pod, &asking);
        let mut changed = false;
        for request in self.handle.update(requests).await? {
            let devices = self.choose(&request).await?;
            if !devices.is_empty() {
                self.ask_for(request, devices).await?;
                changed = true;
            }
        }
        let (pod, name) = (self.pod.uid.clone(), container.name.clone());
        let role = self.pod.init_role(&name);
        let finish = move |task: &mut ManagerTask| {
            if changed {
                task.save()?;
            }
            task.manager.container_served(&pod, &name, role);
            Ok(())
        };
        self.handle.update(finish).await?
    }

    /// Devices to allocate, after the plugin stated its preference; empty without a request.
    async fn choose(&mut self, request: &Request) -> Result<DeviceIds, Refusal> {
        let asking = request.clone();
        match self.handle.update(move |task| task.manager.next_step(&asking)).await?? {
            Step::Nothing => Ok(DeviceIds::new()),
            Step::Take(devices) => Ok(devices),
            Step::Ask(plugin, undecided) => {
                let mut question = Question::about(&undecided);
                plugin.preferred(&mut question).await.map_err(Refusal::Preferred)?;
                let key = (request.container.clone(), request.resource.clone());
                self.questions.insert(key, question.clone());
                let settle = move |task: &mut ManagerTask| {
                    let preferred = question.answer.iter().cloned().collect();
                    task.events.push(Event::preferred_asked(&undecided.request, question));
                    task.manager.settle(*undecided, &preferred)
                };
                self.handle.update(settle).await?
            }
        }
    }

    /// Calls `Allocate` and records the outcome.
    async fn ask_for(&self, request: Request, devices: DeviceIds) -> Result<(), Refusal> {
        let resource = request.resource.clone();
        let answer = match self.handle.update(move |task| task.manager.plugin(&resource)).await?? {
            Ok(plugin) => plugin.allocate(&devices).await,
            Err(stopped) => Err(stopped),
        };
        self.handle.update(move |task| task.record(&request, devices, answer)).await?
    }
}
