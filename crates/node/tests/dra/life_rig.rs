//! A node in a cluster: GPUs and a board that claims may have, and pods that want them.

use std::time::Duration;

use k8s_openapi::api::{core::v1::Pod, events::v1::Event, resource::v1::ResourceClaim};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use windlass_cluster_sim::{
    api::{Object, Objects},
    cluster::Cluster,
};
use windlass_core::device::Device;
use windlass_kubelet_api::dra::v1 as wire;
use windlass_machine::{Board, BoardAddresses, BoardEvent, Machine, Profile};
use windlass_node::{
    Config,
    config::{
        ClusterAccess, DraOffer, DraPolicy, Find, Give, Handover, HandoverLimits, HealthPolicy,
        Policy, SourceRule, Step, StepAction,
    },
    state::NodeState,
};

use crate::{
    common::{
        node::node,
        running::{LIMIT, Running},
    },
    kubelet::Kubelet,
};

/// The cluster, the node's devices, and the agent's settings.
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

/// How long one step may take.
const STEP: Duration = Duration::from_secs(2);

/// What the board is set to before a claim has it.
pub(crate) const MHZ: u32 = 200;

// === impl Rig ===

impl Rig {
    pub(crate) fn new() -> Self {
        Self::on("dgx-h100")
    }

    /// On a machine of this profile.
    pub(crate) fn on(machine: &str) -> Self {
        let board = Board::start(&BoardAddresses::any()).expect("free ports");
        let dra = DraPolicy { offer: DraOffer::Beside, ..DraPolicy::default() };
        let health = HealthPolicy {
            quiet_period: Duration::from_millis(20),
            probe_interval: Duration::from_millis(100),
            ..HealthPolicy::default()
        };
        let sources = vec![board_rule(&board)];
        let profile = Profile::named(machine).expect("a shipped profile");
        let (folder, machine, config) =
            node(&profile, Policy { dra, health, sources, ..Policy::default() });
        let cluster = Cluster::start();
        let kubeconfig = folder.join("kubeconfig");
        std::fs::write(&kubeconfig, cluster.server().kubeconfig()).expect("written");
        // What boot it is has to be known: after another nobody knows what a device went through.
        let boot = config.host_root.join("proc/sys/kernel/random/boot_id");
        std::fs::create_dir_all(boot.parent().expect("it has one")).expect("made");
        std::fs::write(boot, "one").expect("written");
        cluster.add_node("n1");
        for (name, kind) in [("board", "other"), ("gpu", "gpu"), ("nic", "nic")] {
            put_class(&cluster.objects(), name, kind);
        }
        let access = ClusterAccess {
            kubeconfig: Some(kubeconfig),
            node_name: Some("n1".to_owned()),
            events: true,
            ..ClusterAccess::default()
        };
        let handover = HandoverLimits {
            retry_first: Duration::from_millis(20),
            retry_most: Duration::from_millis(200),
            ..HandoverLimits::default()
        };
        Self { cluster, board, machine, config: Config { cluster: access, handover, ..config } }
    }

    /// An agent, and its kubelet, once the board may be chosen.
    pub(crate) async fn serving(&self) -> (Running, Kubelet) {
        let agent = Running::start(&self.config).expect("it starts");
        let registration = self.config.kubelet_dir.join("plugins_registry/windlass.dev@reg.sock");
        while !registration.exists() {
            sleep(Duration::from_millis(5)).await;
        }
        let is_board = |device: &&Device| device.source.as_str() == "darwin3";
        let board = |state: &NodeState| state.inventory.devices.iter().find(is_board).cloned();
        agent.until(|state| board(state).is_some_and(|it| it.health.is_healthy())).await;
        self.taints("n1/darwin3", &[]).await;
        (agent, Kubelet::register(&registration).await)
    }

    pub(crate) fn objects(&self) -> Objects {
        self.cluster.objects()
    }

    /// A pod that the scheduler gives a device of a class to, or why it has none.
    pub(crate) fn schedule(&self, pod: &str, class: &str) -> Result<Tenant, String> {
        let wanted = typed::<Pod>(json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod, "namespace": "ns"},
            "spec": {
                "resourceClaims": [{"name": "it", "resourceClaimTemplateName": class}],
                "containers": [{"name": "main", "resources": {"claims": [{"name": "it"}]}}],
            },
        }));
        let scheduled = self.cluster.schedule(&wanted).map_err(|error| error.to_string())?;
        let metadata = scheduled.claims[0].metadata.clone();
        let (claim, uid) = (metadata.name.expect("a name"), metadata.uid.expect("a UID"));
        Ok(Tenant { pod: pod.to_owned(), claim, uid })
    }

    /// A pod that has a GPU, once all eight may be chosen.
    pub(crate) async fn free_gpu(&self, pod: &str) -> Tenant {
        self.taints("n1/nvidia", &[]).await;
        self.schedule(pod, "gpu").expect("there are eight")
    }

    /// A pod ends: the kubelet releases its claim, then the claim is gone.
    pub(crate) async fn end(&self, kubelet: &mut Kubelet, tenant: &Tenant) {
        kubelet.unprepare_claim((&tenant.claim, &tenant.uid)).await.expect("released");
        self.cluster.delete_pod("ns", &tenant.pod).expect("deleted");
    }

    /// A pool's taints, once they are these.
    pub(crate) async fn taints(&self, pool: &str, expected: &[&str]) {
        let is_it = |objects: &Objects| {
            let found = taints_of(objects, pool)?;
            (found == expected).then_some(())
        };
        let found = self.objects().until(LIMIT, is_it).await;
        found.unwrap_or_else(|_| {
            panic!("{expected:?} is not {:?}", taints_of(&self.objects(), pool))
        });
    }

    /// Waits until an event says this.
    pub(crate) async fn until_told(&self, text: &str) {
        let told = |objects: &Objects| {
            let events: Vec<Event> = objects.list();
            events.into_iter().find_map(|it| it.note.filter(|note| note.contains(text)))
        };
        let told = self.objects().until(LIMIT, told).await;
        drop(told.unwrap_or_else(|_| panic!("no event says {text:?}")));
    }

    /// A claim as it is kept, once it fulfils a condition.
    pub(crate) async fn until_claim(
        &self,
        tenant: &Tenant,
        condition: impl Fn(&Value) -> bool,
    ) -> Value {
        let read = |objects: &Objects| {
            let claim: ResourceClaim = objects.get("ns", &tenant.claim)?;
            Some(serde_json::to_value(claim).expect("JSON"))
        };
        let found = self.objects().until(LIMIT, |it| read(it).filter(&condition)).await;
        found.unwrap_or_else(|_| panic!("the claim is {:#?}", read(&self.objects())))
    }

    /// What happens to the board, until it is this or the time is over.
    pub(crate) async fn happens(&self, expected: &[BoardEvent]) {
        let (mut events, deadline) = (Vec::new(), Instant::now() + LIMIT);
        while events.len() < expected.len() && Instant::now() < deadline {
            sleep(Duration::from_millis(5)).await;
            events.extend(self.board.take_events());
        }
        assert_eq!(events, expected);
    }
}

// === impl Kubelet ===

impl Kubelet {
    pub(crate) async fn start_with(
        &mut self,
        tenant: &Tenant,
    ) -> Result<Vec<wire::Device>, String> {
        self.prepare_of((&tenant.claim, &tenant.uid)).await
    }
}

/// A step that lasts no longer than the tests have patience for.
pub(crate) fn step(action: StepAction) -> Step {
    Step { action, timeout: STEP }
}

fn board_rule(board: &Board) -> SourceRule {
    let get = |target: &str| step(StepAction::Http(format!("http://{{endpoint}}/{target}")));
    let handover = Handover {
        prepare: vec![get("chip_reset"), get(&format!("set_frequency?freq={MHZ}"))],
        release: vec![get("chip_reset")],
    };
    let find = Find::Endpoints(vec![board.control().to_string()]);
    let new = SourceRule::new("darwin3".parse().expect("a name"), find);
    let env = [("DARWIN3_CONTROL".to_owned(), "http://{endpoint}".to_owned())].into();
    let give = Give { env, ..Give::default() };
    SourceRule { resource: "zj.com/darwin3".parse().ok(), handover, give, ..new }
}

fn put_class(objects: &Objects, name: &str, kind: &str) {
    let expression = format!(
        "device.driver == 'windlass.dev' && device.attributes['windlass.dev'].type == '{kind}'"
    );
    objects.put(&typed::<k8s_openapi::api::resource::v1::DeviceClass>(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    })));
    objects.put(&typed::<k8s_openapi::api::resource::v1::ResourceClaimTemplate>(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": "ns"},
        "spec": {"spec": {"devices": {"requests": [
            {"name": "it", "exactly": {"deviceClassName": name}},
        ]}}},
    })));
}

/// What taints the devices of a pool have, in the order of the devices; `None` while it has no devices.
fn taints_of(objects: &Objects, pool: &str) -> Option<Vec<String>> {
    let slices: Vec<k8s_openapi::api::resource::v1::ResourceSlice> = objects.list();
    let slices = slices.iter().filter(|slice| slice.spec.pool.name == pool);
    let mut devices = slices.flat_map(|slice| slice.spec.devices.iter().flatten()).peekable();
    devices.peek()?;
    let taints = devices.flat_map(|device| device.taints.iter().flatten());
    let spelled = |key: &str, value: Option<&str>| format!("{key}={}", value.unwrap_or_default());
    Some(taints.map(|taint| spelled(&taint.key, taint.value.as_deref())).collect())
}

fn typed<T: Object>(document: Value) -> T {
    serde_json::from_value(document).expect("a document of its type")
}
