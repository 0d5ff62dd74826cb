//! Admission of a pod: a hint and devices for each container, then the node's own count.
//!
//! ```text
//!  for each container, init containers first (with policies other than `none`: hint first)
//!    for each resource: choose ─(ask the plugin)─> Allocate ─> record
//!    checkpoint
//!  then: does the pod fit the node?
//! ```
//!
//! Each line is one visit to the desk. Calls to the plugin lie between two visits: the real manager
//! unlocks its mutex there.

mod outcome;
mod rejection;
mod steps;

pub use outcome::{Admission, Allotment, ContainerAdmission, Question};
pub use rejection::{Reason, Rejection};

use self::{outcome::Questions, rejection::Denial, steps::Step};
use crate::{
    desk::{Desk, Owner},
    device::DeviceIds,
    event::Event,
    manager::{Alignment, Manager, Refusal, Request, Vanished},
    pod::{Container, Pod},
    status::PodPhase,
    topology::{TopologyPolicy, TopologyScope},
};

/// Admission of one pod.
struct Admitting<'a> {
    owner: &'a Owner,
    pod: &'a Pod,
    questions: Questions,
}

/// Admits a pod, or finds the reason for its rejection, and records the outcome. The caller admits
/// one pod at a time.
pub(crate) async fn admit(owner: &Owner, pod: Pod) -> Result<Admission, Rejection> {
    let bound = pod.clone();
    owner.with(move |desk| desk.manager.add_pod(bound)).await?;
    let mut admitting = Admitting { owner, pod: &pod, questions: Questions::new() };
    let outcome = admitting.serve().await;
    let questions = admitting.questions;
    let uid = pod.uid.clone();
    match outcome {
        Ok(()) => {
            let settle = move |desk: &mut Desk| {
                desk.manager.set_phase(&uid, PodPhase::Admitted);
                desk.events.push(Event::PodAdmitted { pod: uid });
                Admission::of(&desk.manager, &pod, questions)
            };
            Ok(owner.with(settle).await?)
        }
        Err(denial) => {
            let rejection = denial.into_rejection();
            let told = rejection.clone();
            owner.with(move |desk| desk.reject(uid, &told)).await.unwrap_or(());
            Err(rejection)
        }
    }
}

/// Allocates devices for one container outside of an admission. The real kubelet does so when a
/// container that starts has no allocation.
pub(crate) async fn allocate_again(
    owner: &Owner,
    pod: &Pod,
    container: &Container,
) -> Result<(), Refusal> {
    Admitting { owner, pod, questions: Questions::new() }.allocate(container).await
}

// === impl Admitting ===

impl Admitting<'_> {
    async fn serve(&mut self) -> Result<(), Denial> {
        let read = |desk: &Desk| (desk.config.topology, desk.config.topology_scope);
        let (policy, scope) = self.owner.look(read).await?;
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
        self.owner.look(move |desk| desk.manager.fits(&pod)).await?.map_err(Denial::Insufficient)
    }

    async fn align(
        &self,
        decide: impl FnOnce(&mut Manager) -> Result<Alignment, Vanished> + Send + 'static,
    ) -> Result<(), Denial> {
        let decide = |desk: &mut Desk| {
            let decision = decide(&mut desk.manager);
            decision.inspect_err(|vanished| desk.crash(vanished))
        };
        match self.owner.with(decide).await?.map_err(Refusal::from)? {
            Alignment::Admitted => Ok(()),
            Alignment::Misaligned => Err(Denial::Misaligned),
        }
    }

    async fn allocate(&mut self, container: &Container) -> Result<(), Refusal> {
        let (pod, asking) = (self.pod.uid.clone(), container.clone());
        let requests = move |desk: &mut Desk| desk.manager.requests(&pod, &asking);
        let mut changed = false;
        for request in self.owner.with(requests).await? {
            let devices = self.choose(&request).await?;
            if !devices.is_empty() {
                self.ask_for(request, devices).await?;
                changed = true;
            }
        }
        let (pod, name) = (self.pod.uid.clone(), container.name.clone());
        let role = self.pod.init_role(&name);
        let finish = move |desk: &mut Desk| {
            if changed {
                desk.save()?;
            }
            desk.manager.container_served(&pod, &name, role);
            Ok(())
        };
        self.owner.with(finish).await?
    }

    /// Devices to allocate, after the plugin stated its preference; empty without a request.
    async fn choose(&mut self, request: &Request) -> Result<DeviceIds, Refusal> {
        let asking = request.clone();
        match self.owner.with(move |desk| desk.manager.next_step(&asking)).await?? {
            Step::Nothing => Ok(DeviceIds::new()),
            Step::Take(devices) => Ok(devices),
            Step::Ask(plugin, undecided) => {
                let mut question = Question::about(&undecided);
                plugin.preferred(&mut question).await.map_err(Refusal::Preferred)?;
                let key = (request.container.clone(), request.resource.clone());
                self.questions.insert(key, question.clone());
                let settle = move |desk: &mut Desk| {
                    let preferred = question.answer.iter().cloned().collect();
                    desk.events.push(Event::preferred_asked(&undecided.request, question));
                    desk.manager.settle(*undecided, &preferred)
                };
                self.owner.with(settle).await?
            }
        }
    }

    /// Calls `Allocate` and records the outcome.
    async fn ask_for(&self, request: Request, devices: DeviceIds) -> Result<(), Refusal> {
        let resource = request.resource.clone();
        let answer = match self.owner.with(move |desk| desk.manager.plugin(&resource)).await?? {
            Ok(plugin) => plugin.allocate(&devices).await,
            Err(stopped) => Err(stopped),
        };
        self.owner.with(move |desk| desk.record(&request, devices, answer)).await?
    }
}
