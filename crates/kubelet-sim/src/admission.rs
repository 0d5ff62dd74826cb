//! Admission of a pod: a hint and devices for each container, then the node's own count.
//!
//! ```text
//!  for each container, init containers first (with policies other than `none`: hint first)
//!    for each resource: choose ─(ask the plugin)─> Allocate ─> record
//!    checkpoint
//!  then: does the pod fit the node?
//! ```
//!
//! Every line is one visit to the desk, and the plugin is called between two visits, as the real
//! manager unlocks its mutex there.

use std::{collections::BTreeMap, fmt};

use crate::{
    desk::{Desk, Gone, Owner},
    device::DeviceIds,
    event::Event,
    grant::Grant,
    manager::{
        Alignment, Answer, Choice, Insufficient, Manager, Refusal, Request, Undecided, Vanished,
        saturating,
    },
    plugin::{Plugin, RpcError},
    pod::{Container, Pod},
    status::PodPhase,
    topology::{TopologyPolicy, TopologyScope},
};

/// A pod that was admitted, and what its containers hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// UID of the pod.
    pub pod_uid: String,
    /// Containers in the order of admission: init containers first.
    pub containers: Vec<ContainerAdmission>,
}

/// What one container holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerAdmission {
    /// Container name.
    pub name: String,
    /// By resource. A resource that no plugin ever registered is missing: such a pod is admitted
    /// without devices.
    pub resources: BTreeMap<String, Allotment>,
}

/// Devices of one resource, how they were chosen and what comes with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allotment {
    /// Ids by NUMA node, -1 for none.
    pub devices: BTreeMap<i64, Vec<String>>,
    /// The plugin's answer.
    pub grant: Grant,
    /// What the plugin was asked before, if it was.
    pub preference: Option<Question>,
}

/// A `GetPreferredAllocation` call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Devices to choose from.
    pub available: DeviceIds,
    /// Devices that are taken in any case.
    pub must_include: DeviceIds,
    /// How many there shall be in the end.
    pub size: usize,
    /// The plugin's answer as it came.
    pub answer: Vec<String>,
}

/// A pod that was not admitted. The kubelet does not try again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pod rejected: {reason}: {message}")]
pub struct Rejection {
    /// The pod's `status.reason`.
    pub reason: Reason,
    /// The pod's `status.message`.
    pub message: String,
}

/// A pod's `status.reason` after a rejection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// `UnexpectedAdmissionError`: devices could not be allocated.
    UnexpectedAdmissionError,
    /// `TopologyAffinityError`: devices cannot be aligned as the policy demands.
    TopologyAffinityError,
    /// `OutOf<resource>`: the node's count does not suffice.
    OutOf(String),
    /// Not the real kubelet's word: it was stopped, or panicked, before it could decide.
    KubeletGone,
}

/// Why admission stopped, before it is put into a pod's words.
#[derive(Debug)]
enum Denial {
    Refused(Refusal),
    Misaligned,
    Insufficient(Insufficient),
}

/// What the plugin was asked, by container and resource.
type Questions = BTreeMap<(String, String), Question>;

/// A choice as far as it goes without the plugin.
enum Step {
    Nothing,
    Take(DeviceIds),
    Ask(Plugin, Box<Undecided>),
}

/// The work of admitting one pod.
struct Admitting<'a> {
    owner: &'a Owner,
    pod: &'a Pod,
    questions: Questions,
}

/// Admits a pod, or finds the reason why not, and records the outcome. The caller sees to it that
/// one pod is admitted at a time.
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

/// Gives one container its devices, outside of an admission: the real kubelet does so when it
/// starts a container and finds that nothing was allocated.
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
        let read = |desk: &mut Desk| (desk.config.topology, desk.config.topology_scope);
        let (policy, scope) = self.owner.with(read).await?;
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
        self.owner.with(move |desk| desk.manager.fits(&pod)).await?.map_err(Denial::Insufficient)
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

    /// The devices to allocate, after the plugin said which it prefers. None at all if there is
    /// nothing to do.
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

// === impl Manager, for admission ===

impl Manager {
    /// What the container asks of plugins, after a garbage collection if it asks for anything.
    fn requests(&mut self, pod: &str, container: &Container) -> Vec<Request> {
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

    fn next_step(&mut self, request: &Request) -> Result<Step, Refusal> {
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
    fn plugin(&mut self, resource: &str) -> Result<Result<Plugin, RpcError>, Refusal> {
        let Some(endpoint) = self.endpoints.get(resource) else {
            self.restore_allocated();
            return Err(Refusal::UnknownPlugin(resource.to_owned()));
        };
        Ok(endpoint.plugin(resource))
    }
}

// === impl Desk, for admission ===

impl Desk {
    /// Takes the plugin's answer to `Allocate`. An error frees the choice; an answer without a
    /// container response leaks it until a pod is collected.
    fn record(
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

    fn reject(&mut self, pod: String, rejection: &Rejection) {
        let (reason, message) = (rejection.reason.to_string(), rejection.message.clone());
        let phase = PodPhase::Failed { reason: reason.clone(), message: message.clone() };
        self.manager.set_phase(&pod, phase);
        self.events.push(Event::PodRejected { pod, reason, message });
    }
}

// === impl Admission ===

impl Admission {
    fn of(manager: &Manager, pod: &Pod, mut questions: Questions) -> Self {
        let containers = pod.in_admission_order().map(|container| {
            let holdings = manager.holdings.container(&pod.uid, &container.name);
            let resources = holdings.into_iter().flatten().map(|(resource, held)| {
                let key = (container.name.clone(), resource.clone());
                let allotment = Allotment {
                    devices: held.by_numa.clone(),
                    grant: held.grant.clone(),
                    preference: questions.remove(&key),
                };
                (resource.clone(), allotment)
            });
            ContainerAdmission { name: container.name.clone(), resources: resources.collect() }
        });
        let containers = containers.collect();
        Self { pod_uid: pod.uid.clone(), containers }
    }

    /// What a container holds of a resource.
    pub fn allotment(&self, container: &str, resource: &str) -> Option<&Allotment> {
        self.containers.iter().find(|found| found.name == container)?.resources.get(resource)
    }
}

// === impl Allotment ===

impl Allotment {
    /// The ids, each once.
    pub fn ids(&self) -> DeviceIds {
        self.devices.values().flatten().cloned().collect()
    }
}

// === impl Question ===

impl Question {
    fn about(undecided: &Undecided) -> Self {
        Self {
            available: undecided.available(),
            must_include: undecided.taken.clone(),
            size: undecided.request.size,
            answer: Vec::new(),
        }
    }
}

// === impl Denial ===

impl Denial {
    fn into_rejection(self) -> Rejection {
        let (reason, cause) = match self {
            Self::Refused(gone @ (Refusal::Stopped | Refusal::Panic(_))) => {
                return Rejection { reason: Reason::KubeletGone, message: gone.to_string() };
            }
            Self::Refused(refusal) => (
                Reason::UnexpectedAdmissionError,
                format!("Allocate failed due to {refusal}, which is unexpected"),
            ),
            Self::Misaligned => (
                Reason::TopologyAffinityError,
                "Resources cannot be allocated with Topology locality".to_owned(),
            ),
            Self::Insufficient(short) => (Reason::OutOf(short.resource.clone()), short.to_string()),
        };
        Rejection { reason, message: format!("Pod was rejected: {cause}") }
    }
}

impl From<Refusal> for Denial {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Gone> for Denial {
    fn from(gone: Gone) -> Self {
        Self::Refused(gone.into())
    }
}

impl From<Gone> for Rejection {
    fn from(gone: Gone) -> Self {
        Denial::from(gone).into_rejection()
    }
}

// === impl Reason ===

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnexpectedAdmissionError => f.write_str("UnexpectedAdmissionError"),
            Self::TopologyAffinityError => f.write_str("TopologyAffinityError"),
            Self::OutOf(resource) => write!(f, "OutOf{resource}"),
            Self::KubeletGone => f.write_str("KubeletGone"),
        }
    }
}
