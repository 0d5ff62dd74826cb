//! Model test: random events of pods, nodes and extenders, compared with the state of the API server. No GPU is
//! allocated twice, and no GPU is lost.
//!
//! The API server is a table of pods with their placements. The extender sees it through a watch that lags, fails and
//! lists again. Its binds succeed, fail, or succeed without an answer. Another replica may take over. Some pods are
//! gangs, of which no bind is written before all members have arrived. `WINDLASS_MODEL_STEPS` sets the number of steps.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    env,
};

use windlass_control::{
    facts::{Gang, GpuFacts, GpuRequest, NodeFacts, PodFacts, ResourceRequest, ShareScheme},
    index::{Arrival, GangWait, Index, NodeSnapshot, Refusal},
};
use windlass_core::{
    annotation::{AcceptedGpus, PodPlacement},
    device::DeviceId,
};
use windlass_sched::{random::Random, request::ShareMemory};

const STEPS: usize = 20_000;
const NODES: usize = 6;
const GPU_MIB: u32 = 24_576;
/// Maximum number of pods at a time: more than fit, so that some always wait.
const MAX_PODS: usize = 120;

/// The API server's objects.
struct ServerState {
    nodes: BTreeMap<String, NodeFacts>,
    pods: BTreeMap<String, (PodFacts, Option<PodPlacement>)>,
    version: u64,
    created_count: usize,
}

/// A change that the watch will deliver to the extender.
enum Event {
    Node(NodeFacts),
    NodeDeleted(String),
    Pod(Box<PodFacts>),
    PodDeleted(String),
}

struct Model {
    random: Random,
    server: ServerState,
    index: Index,
    /// Events that the watch has not delivered yet.
    undelivered: VecDeque<Event>,
    /// Members of gangs that have arrived for their bind, with their nodes and devices.
    waiting: Vec<Waiting>,
    bound: usize,
    refused: usize,
    /// Number of gangs whose members were all bound, and number of gangs that were given up.
    gangs: (usize, usize),
}

struct Waiting {
    pod: PodFacts,
    node: String,
    placement: PodPlacement,
    decision_id: u64,
    wait: GangWait,
}

fn node(n: usize) -> NodeFacts {
    let gpu = |g: usize| GpuFacts {
        id: Some(format!("GPU-{n}-{g}").parse::<DeviceId>().expect("an id")),
        model: ["A10", "H100"][n % 2].to_owned(),
        memory_mib: GPU_MIB,
        ..GpuFacts::default()
    };
    NodeFacts {
        name: format!("node-{n}"),
        cpu_milli: 64_000,
        memory_mib: 262_144,
        pods: 110,
        gpus: (0..[1, 2, 4, 8, 8, 16][n]).map(gpu).collect(),
        ..NodeFacts::default()
    }
}

// === impl Model ===

impl Model {
    fn new(seed: u64) -> Self {
        let nodes = (0..NODES).map(node).map(|node| (node.name.clone(), node)).collect();
        let server = ServerState { nodes, pods: BTreeMap::new(), version: 1, created_count: 0 };
        let index = Self::new_index(&server);
        Self {
            random: Random::new(seed),
            server,
            index,
            undelivered: VecDeque::new(),
            waiting: Vec::new(),
            bound: 0,
            refused: 0,
            gangs: (0, 0),
        }
    }

    /// The index of a new extender that has read all objects.
    fn new_index(server: &ServerState) -> Index {
        let mut index = Index::default();
        server.nodes.values().for_each(|node| index.set_node(node.clone()));
        server.pods.values().for_each(|(pod, _)| index.set_pod(pod.clone()));
        index.set_synced();
        index
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..26 if self.server.pods.len() < MAX_PODS => self.create(None),
            26..30 if self.server.pods.len() < MAX_PODS => self.create_gang(),
            0..59 => self.bind(),
            59 if self.random.below(2) == 0 => self.give_up(),
            59 => self.remove_gang_label(),
            60..75 => self.end(),
            75..85 => self.deliver_some(),
            85..89 => self.toggle_health(),
            89..92 => self.delete_or_create_node(),
            92..96 => self.list_again(),
            // Another replica takes over. It lists all pods before its first bind.
            96..98 => {
                self.index = Self::new_index(&self.server);
                self.undelivered.clear();
                self.waiting.clear();
            }
            _ => self.deliver_all(),
        }
    }

    /// A gang of two to five pods, of which one may be created later or never.
    fn create_gang(&mut self) {
        let size = 2 + self.random.below(4);
        let gang = Gang {
            name: format!("gang-{}", self.server.created_count),
            size,
            topology_key: None,
            scheduler: "windlass".to_owned(),
        };
        for _ in 0..size - usize::from(self.random.below(8) == 0) {
            self.create(Some(&gang));
        }
    }

    fn create(&mut self, gang: Option<&Gang>) {
        let gpus = match self.random.below(10) {
            0..4 => GpuRequest::Whole([1, 1, 2, 4][self.random.below(4)]),
            4 if gang.is_none() => GpuRequest::None,
            _ => GpuRequest::Share {
                count: [1, 1, 2][self.random.below(3)],
                compute_milli: [0, 100, 300, 500][self.random.below(4)],
                memory: ShareMemory::Mib([1024, 4096, 8192, 12_288][self.random.below(4)]),
                scheme: ShareScheme::Windlass,
            },
        };
        self.server.created_count += 1;
        let uid = format!("uid-{:06}", self.server.created_count);
        let pod = PodFacts {
            uid: uid.clone(),
            resource_version: self.server.next(),
            namespace: "ns".to_owned(),
            name: uid.clone(),
            node: None,
            created: i64::try_from(self.server.created_count).expect("a small number"),
            priority: 0,
            unschedulable: None,
            is_ended: false,
            resources: ResourceRequest {
                cpu_milli: 500,
                memory_mib: 256,
                gpus: Ok(gpus),
                accepted: AcceptedGpus::default(),
            },
            gang: gang.cloned().map(Ok),
            gpu_index: None,
            claims: Vec::new(),
            gpus: Vec::new(),
        };
        self.server.pods.insert(uid, (pod.clone(), None));
        self.undelivered.push_back(Event::Pod(Box::new(pod)));
    }

    /// kube-scheduler filters nodes and binds to the best. The write succeeds, fails, or loses its answer.
    fn bind(&mut self) {
        let Some(pod) = self.next_pod() else { return };
        let pod = &pod;
        let names: Vec<_> = self.server.nodes.keys().cloned().collect();
        self.index.add_offer(pod, &names);
        let fitting = self.index.filter(pod, &names).into_iter();
        let fitting: Vec<_> =
            fitting.filter_map(|(name, fits)| Some((fits.ok()?, name.to_owned()).1)).collect();
        let ranked = self.index.rank(pod, &fitting, 1).first().map(|name| (*name).to_owned());
        // For a gang's member, filter returns only the planned node.
        let Some(name) = ranked.or_else(|| fitting.first().cloned()) else {
            self.refused += 1;
            return;
        };
        let (decision, arrival) = match self.index.arrive(pod, &name) {
            Ok(arrived) => arrived,
            // Another member has lost its GPUs, so the whole gang is given up.
            Err(Refusal::GangLostNode(_)) => {
                self.waiting.retain(|it| it.pod.gang != pod.gang);
                self.refused += 1;
                return;
            }
            Err(refusal) => panic!("a node that fits can serve it: {refusal}"),
        };
        let (pod, placement, decision_id) = (pod.clone(), decision.placement, decision.id);
        match arrival {
            Arrival::Single => self.write(&pod.uid, &name, placement, decision_id),
            Arrival::Waiting(wait) => {
                self.waiting.push(Waiting { pod, node: name, placement, decision_id, wait });
            }
            Arrival::Last => {
                self.gangs.0 += 1;
                self.write(&pod.uid, &name, placement, decision_id);
                let (members, waiting): (Vec<_>, Vec<_>) = std::mem::take(&mut self.waiting)
                    .into_iter()
                    .partition(|it| it.pod.gang == pod.gang);
                self.waiting = waiting;
                for Waiting { pod, node, placement, decision_id, .. } in members {
                    // A pod with two bind calls is written once.
                    let is_current = self.index.is_current_decision(&pod.uid, decision_id);
                    if is_current && self.server.pods.contains_key(&pod.uid) {
                        self.write(&pod.uid, &node, placement, decision_id);
                    }
                }
            }
        }
    }

    fn next_pod(&mut self) -> Option<PodFacts> {
        let is_waiting = |pod: &PodFacts| self.waiting.iter().any(|it| it.pod.uid == pod.uid);
        let pods = self.server.pods.values().map(|(pod, _)| pod);
        // A restarted kube-scheduler binds a waiting pod again.
        let binds_again = self.random.below(20) == 0;
        let pending = pods.filter(|pod| pod.node.is_none() && (binds_again || !is_waiting(pod)));
        let pending: Vec<_> = pending.cloned().collect();
        if pending.is_empty() {
            return None;
        }
        // Often prefers a waiting gang, because kube-scheduler schedules members in quick succession.
        let is_of_waiting_gang =
            |pod: &&PodFacts| self.waiting.iter().any(|it| it.pod.gang == pod.gang);
        let members: Vec<_> = pending.iter().filter(is_of_waiting_gang).collect();
        Some(match self.random.below(2) {
            0 if !members.is_empty() => members[self.random.below(members.len())].clone(),
            _ => pending[self.random.below(pending.len())].clone(),
        })
    }

    /// A user removes the gang label of a pending pod.
    fn remove_gang_label(&mut self) {
        let pods = self.server.pods.values().map(|(pod, _)| pod);
        let members = pods.filter(|pod| pod.node.is_none() && pod.gang.is_some());
        let members: Vec<_> = members.map(|pod| pod.uid.clone()).collect();
        if members.is_empty() {
            return;
        }
        let version = self.server.next();
        let uid = &members[self.random.below(members.len())];
        let (pod, _) = self.server.pods.get_mut(uid).expect("listed above");
        (pod.gang, pod.resource_version) = (None, version);
        self.undelivered.push_back(Event::Pod(Box::new(pod.clone())));
    }

    /// A gang's members did not arrive in time.
    fn give_up(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let nth = self.random.below(self.waiting.len());
        let wait = self.waiting[nth].wait.clone();
        let gang = self.waiting[nth].pod.gang.clone();
        self.gangs.1 += usize::from(self.index.give_up(&wait));
        self.waiting.retain(|it| it.pod.gang != gang);
    }

    fn write(&mut self, uid: &str, name: &str, placement: PodPlacement, decision_id: u64) {
        self.index.begin_write(uid, decision_id);
        match self.random.below(10) {
            0 => self.index.end_write(uid, decision_id),
            // The answer is lost. The watch delivers the outcome.
            outcome => {
                let event = self.server.bind(uid, name, placement);
                self.bound += 1;
                if outcome > 1 {
                    self.undelivered.push_back(event);
                } else {
                    self.deliver_all();
                    self.apply(event);
                }
            }
        }
    }

    /// A pod ends, is deleted, or is deleted by force.
    fn end(&mut self) {
        let uids: Vec<_> = self.server.pods.keys().cloned().collect();
        if uids.is_empty() {
            return;
        }
        let uid = uids[self.random.below(uids.len())].clone();
        let (mut pod, _) = self.server.pods.remove(&uid).expect("listed above");
        pod.resource_version = self.server.next();
        pod.is_ended = true;
        if self.random.below(2) == 0 {
            self.undelivered.push_back(Event::Pod(Box::new(pod)));
        }
        self.undelivered.push_back(Event::PodDeleted(uid));
    }

    fn toggle_health(&mut self) {
        let n = self.random.below(NODES);
        let Some(node) = self.server.nodes.get_mut(&format!("node-{n}")) else { return };
        let gpu = self.random.below(node.gpus.len());
        let obstacle = &mut node.gpus[gpu].obstacle;
        *obstacle = if obstacle.is_some() { None } else { Some("xid 79".to_owned()) };
        self.undelivered.push_back(Event::Node(node.clone()));
    }

    /// A node is deleted. Its pods stay until they are deleted too.
    fn delete_or_create_node(&mut self) {
        let n = self.random.below(NODES);
        let name = format!("node-{n}");
        if self.server.nodes.remove(&name).is_some() {
            self.undelivered.push_back(Event::NodeDeleted(name));
        } else {
            self.server.nodes.insert(name, node(n));
            self.undelivered.push_back(Event::Node(node(n)));
        }
    }

    /// The watch fails, and a list delivers the newest state of all objects.
    fn list_again(&mut self) {
        self.undelivered.clear();
        let names: HashSet<_> = self.server.nodes.keys().cloned().collect();
        self.server.nodes.values().for_each(|node| self.index.set_node(node.clone()));
        self.index.retain_nodes(&names);
        let list = self.index.begin_list();
        let pods = self.server.pods.values().map(|(pod, _)| pod.clone()).collect();
        self.index.end_list(list, pods);
    }

    fn deliver_some(&mut self) {
        for _ in 0..self.random.below(10) {
            let Some(event) = self.undelivered.pop_front() else { return };
            self.apply(event);
        }
    }

    fn deliver_all(&mut self) {
        while let Some(event) = self.undelivered.pop_front() {
            self.apply(event);
        }
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Node(facts) => self.index.set_node(facts),
            Event::NodeDeleted(name) => self.index.remove_node(&name),
            Event::Pod(facts) => self.index.set_pod(*facts),
            Event::PodDeleted(uid) => self.index.remove_pod(&uid),
        }
    }

    /// Checks that no GPU is allocated beyond its capacity.
    fn check_capacity(&self) {
        let mut usages: BTreeMap<(&str, &str), (u32, u32, bool, usize)> = BTreeMap::new();
        for (pod, placement) in self.server.pods.values() {
            let (Some(node), Some(placement)) = (&pod.node, placement) else { continue };
            for device in &placement.devices {
                let usage = usages.entry((node, device.id.as_str())).or_default();
                usage.0 += device.memory_mib.unwrap_or(0);
                usage.1 += u32::from(device.compute_milli.unwrap_or(0));
                usage.2 |= device.is_whole();
                usage.3 += 1;
            }
        }
        for (gpu, (mib, milli, is_whole, holders)) in usages {
            assert!(mib <= GPU_MIB && milli <= 1000, "{gpu:?}: {mib} MiB, {milli} thousandths");
            assert!(!is_whole || holders == 1, "{gpu:?} is whole and has {holders} holders");
        }
    }

    /// Delivers all events, and checks that the view equals that of a new extender.
    fn check_view(&mut self) {
        self.deliver_all();
        self.index.give_up_all();
        self.waiting.clear();
        let states = |index: &mut Index| -> Vec<_> {
            let nodes = index.node_snapshots();
            // Numbers of products may differ: they follow the order in which products appear.
            let free = |node: &NodeSnapshot<'_>| {
                let gpus = node.state.gpus.iter().map(|gpu| (gpu.state, gpu.is_usable));
                let (cpu, pods) = (node.state.cpu_milli, node.state.pods);
                (node.facts.name.clone(), cpu, pods, gpus.collect::<Vec<_>>())
            };
            nodes.iter().map(free).collect()
        };
        assert_eq!(states(&mut self.index), states(&mut Self::new_index(&self.server)));
    }
}

// === impl ServerState ===

impl ServerState {
    fn next(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    fn bind(&mut self, uid: &str, node: &str, placement: PodPlacement) -> Event {
        let version = self.next();
        let (pod, placed) = self.pods.get_mut(uid).expect("pending");
        pod.node = Some(node.to_owned());
        pod.resource_version = version;
        pod.gpus = placement.devices.iter().map(|device| device.id.clone()).collect();
        *placed = Some(placement);
        Event::Pod(Box::new(pod.clone()))
    }
}

#[test]
fn no_gpu_is_allocated_twice_or_leaked() {
    let steps = env::var("WINDLASS_MODEL_STEPS").ok();
    let steps = steps.map_or(STEPS, |text| text.parse().expect("a number of steps"));
    let mut model = Model::new(5);
    for step in 0..steps {
        model.step();
        if step % 10 == 0 {
            model.check_capacity();
        }
        if step % 200 == 0 {
            model.check_view();
        }
    }
    assert!(model.bound > steps / 20 && model.refused > 0, "{} bound", model.bound);
    assert!(model.gangs.0 > steps / 1000 && model.gangs.1 > 0, "{:?} gangs", model.gangs);
}
