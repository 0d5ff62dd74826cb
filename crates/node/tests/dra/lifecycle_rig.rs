//! A node in a cluster: GPUs and a board for claims, and pods that request them.

use std::time::Duration;

use k8s_openapi::api::{events::v1::Event, resource::v1::ResourceClaim};
use serde_json::{Value, json};
use windlass_cluster_sim::{api::Objects, cluster::Cluster};
use windlass_config::{Config, DraOffer, DraPolicy, Policy, Step, StepAction};
use windlass_core::device::Device;
use windlass_kubelet_api::dra::v1 as wire;
use windlass_machine::{Board, BoardAddresses, BoardEvent, Machine};
use windlass_resources::NodeState;
use windlass_testkit::{
    Node, RunningAgent, TIMEOUT, board_rule, claim_template, device_class, expect_events,
    health_policy, pod_of_claim, type_selector, until_exists,
};

use crate::dra::kubelet::Kubelet;

/// The cluster, the node's devices, and the agent's configuration.
pub(crate) struct Rig {
    pub(crate) cluster: Cluster,
    pub(crate) board: Board,
    pub(crate) machine: Machine,
    pub(crate) config: Config,
}

/// A pod that has a claim.
pub(crate) struct Tenant {
    pod: String,
    pub(crate) claim: String,
    pub(crate) uid: String,
}

/// Deadline of a step.
const STEP_TIMEOUT: Duration = Duration::from_secs(2);

// === impl Rig ===

impl Rig {
    pub(crate) fn new() -> Self {
        Self::on("dgx-h100")
    }

    /// A rig on a machine of this profile.
    pub(crate) fn on(machine: &str) -> Self {
        let board = Board::start(&BoardAddresses::ephemeral()).expect("free ports");
        let dra = DraPolicy { offer: DraOffer::Beside, ..DraPolicy::default() };
        let health = health_policy(Duration::from_millis(20));
        let sources = vec![board_rule(std::slice::from_ref(&board), STEP_TIMEOUT)];
        let cluster = Cluster::start();
        cluster.add_node("n1");
        for (name, kind) in [("board", "other"), ("gpu", "gpu"), ("nic", "nic")] {
            let devices =
                json!({"requests": [{"name": "it", "exactly": {"deviceClassName": name}}]});
            cluster.objects().put(&device_class(name, &type_selector(kind)));
            cluster.objects().put(&claim_template("ns", name, &devices));
        }
        let node =
            Node::from_profile(machine, Policy { dra, health, sources, ..Policy::default() });
        // After a boot without a record, the history of each device is unknown.
        node.reboot();
        let mut node = node.with_cluster("n1", &cluster.server().kubeconfig());
        node.config.cluster.events = true;
        let Node { machine, config, .. } = node;
        Self { cluster, board, machine, config }
    }

    /// An agent, and its kubelet, once the board is free for claims.
    pub(crate) async fn start_ready(&self) -> (RunningAgent, Kubelet) {
        let agent = RunningAgent::start(&self.config).expect("it starts");
        let registration =
            self.config.places.kubelet_dir.join("plugins_registry/windlass.dev@reg.sock");
        until_exists(&registration).await;
        let is_board = |device: &&Device| device.source.as_str() == "darwin3";
        let board = |state: &NodeState| state.inventory.devices.iter().find(is_board).cloned();
        agent.until(|state| board(state).is_some_and(|it| it.health.is_healthy())).await;
        self.until_taints("n1/darwin3", &[]).await;
        (agent, Kubelet::register(&registration).await)
    }

    pub(crate) fn objects(&self) -> Objects {
        self.cluster.objects()
    }

    /// A pod for which the scheduler allocates a device of a class, or the reason for its refusal.
    pub(crate) fn schedule(&self, pod: &str, class: &str) -> Result<Tenant, String> {
        let pod_with_claim =
            pod_of_claim(("ns", pod), &["main"], ("resourceClaimTemplateName", class));
        let scheduled =
            self.cluster.schedule(&pod_with_claim).map_err(|error| error.to_string())?;
        let metadata = scheduled.claims[0].metadata.clone();
        let (claim, uid) = (metadata.name.expect("a name"), metadata.uid.expect("a UID"));
        Ok(Tenant { pod: pod.to_owned(), claim, uid })
    }

    /// A pod with a GPU, once all eight are free for claims.
    pub(crate) async fn free_gpu(&self, pod: &str) -> Tenant {
        self.until_taints("n1/nvidia", &[]).await;
        self.schedule(pod, "gpu").expect("there are eight")
    }

    /// Ends a pod: the kubelet releases its claim, then the claim is deleted.
    pub(crate) async fn end(&self, kubelet: &mut Kubelet, tenant: &Tenant) {
        kubelet.unprepare_claim((&tenant.claim, &tenant.uid)).await.expect("released");
        self.cluster.delete_pod("ns", &tenant.pod).expect("deleted");
    }

    /// Waits until a pool has these taints.
    pub(crate) async fn until_taints(&self, pool: &str, expected: &[&str]) {
        let is_expected = |objects: &Objects| {
            let taints = taints_of(objects, pool)?;
            (taints == expected).then_some(())
        };
        let result = self.objects().wait_until(TIMEOUT, is_expected).await;
        result.unwrap_or_else(|_| {
            panic!("{expected:?} is not {:?}", taints_of(&self.objects(), pool))
        });
    }

    /// Waits for an event with this text.
    pub(crate) async fn until_event(&self, text: &str) {
        let find = |objects: &Objects| {
            let events: Vec<Event> = objects.list();
            events.into_iter().find_map(|it| it.note.filter(|note| note.contains(text)))
        };
        let result = self.objects().wait_until(TIMEOUT, find).await;
        drop(result.unwrap_or_else(|_| panic!("no event with {text:?}")));
    }

    /// A claim on the API server, once it meets a condition.
    pub(crate) async fn until_claim(
        &self,
        tenant: &Tenant,
        condition: impl Fn(&Value) -> bool,
    ) -> Value {
        let read = |objects: &Objects| {
            let claim: ResourceClaim = objects.get("ns", &tenant.claim)?;
            Some(serde_json::to_value(claim).expect("JSON"))
        };
        let result = self.objects().wait_until(TIMEOUT, |it| read(it).filter(&condition)).await;
        result.unwrap_or_else(|_| panic!("the claim is {:#?}", read(&self.objects())))
    }

    /// Waits until the board has these events.
    pub(crate) async fn until_events(&self, expected: &[BoardEvent]) {
        expect_events(&self.board, expected).await;
    }
}

// === impl Kubelet ===

impl Kubelet {
    pub(crate) async fn start_with(
        &mut self,
        tenant: &Tenant,
    ) -> Result<Vec<wire::Device>, String> {
        self.prepare_claim((&tenant.claim, &tenant.uid)).await
    }
}

/// A step with the deadline of these tests.
pub(crate) fn step(action: StepAction) -> Step {
    Step { action, timeout: STEP_TIMEOUT }
}

/// Taints of a pool's devices in order; `None` while it has no devices.
fn taints_of(objects: &Objects, pool: &str) -> Option<Vec<String>> {
    let slices: Vec<k8s_openapi::api::resource::v1::ResourceSlice> = objects.list();
    let slices = slices.iter().filter(|slice| slice.spec.pool.name == pool);
    let mut devices = slices.flat_map(|slice| slice.spec.devices.iter().flatten()).peekable();
    devices.peek()?;
    let taints = devices.flat_map(|device| device.taints.iter().flatten());
    let text = |key: &str, value: Option<&str>| format!("{key}={}", value.unwrap_or_default());
    Some(taints.map(|taint| text(&taint.key, taint.value.as_deref())).collect())
}
