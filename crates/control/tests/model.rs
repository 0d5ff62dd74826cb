//! Model test: random events of pods, nodes and extenders, compared with the state of the API server. No GPU is given
//! twice, and none is lost.
//!
//! The API server is a table of pods with their placements. The extender sees it through a watch that lags, fails and
//! lists again. Its binds succeed, fail, or succeed without an answer. Another replica may take over. Some pods are
//! gangs, of which no bind is written before all members have arrived. `WINDLASS_MODEL_STEPS` sets the number of steps.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    env,
};

use windlass_control::{
    facts::{Gang, GpuFacts, GpuWish, NodeFacts, PodFacts, SharedBy, Wish},
    index::{GangWait, Index, Inspected, Refusal, Turn},
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
struct Truth {
    nodes: BTreeMap<String, NodeFacts>,
    pods: BTreeMap<String, (PodFacts, Option<PodPlacement>)>,
    version: u64,
    made: usize,
}

/// A change on its way to the extender.
enum Event {
    Node(NodeFacts),
    NodeGone(String),
    Pod(Box<PodFacts>),
    PodGone(String),
}

struct Model {
    random: Random,
    truth: Truth,
    index: Index,
    /// Events that the watch has not delivered yet.
    late: VecDeque<Event>,
    /// Members of gangs that have arrived for their bind, with their nodes and devices.
    waiting: Vec<Waiting>,
    bound: usize,
    refused: usize,
    /// Number of gangs that were bound as a whole, and of those that were given up.
    gangs: (usize, usize),
}

struct Waiting {
    pod: PodFacts,
    node: String,
    placement: PodPlacement,
    number: u64,
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
        let truth = Truth { nodes, pods: BTreeMap::new(), version: 1, made: 0 };
        let index = Self::listed(&truth);
        Self {
            random: Random::new(seed),
            truth,
            index,
            late: VecDeque::new(),
            waiting: Vec::new(),
            bound: 0,
            refused: 0,
            gangs: (0, 0),
        }
    }

    /// The index of a new extender that has read all objects.
    fn listed(truth: &Truth) -> Index {
        let mut index = Index::default();
        truth.nodes.values().for_each(|node| index.set_node(node.clone()));
        truth.pods.values().for_each(|(pod, _)| index.set_pod(pod.clone()));
        index.set_synced();
        index
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..26 if self.truth.pods.len() < MAX_PODS => self.create(None),
            26..30 if self.truth.pods.len() < MAX_PODS => self.create_gang(),
            0..59 => self.bind(),
            59 if self.random.below(2) == 0 => self.give_up(),
            59 => self.leave_a_gang(),
            60..75 => self.end(),
            75..85 => self.deliver_some(),
            85..89 => self.toggle_health(),
            89..92 => self.lose_or_return_a_node(),
            92..96 => self.list_again(),
            // Another replica takes over. It lists all pods before its first bind.
            96..98 => {
                self.index = Self::listed(&self.truth);
                self.late.clear();
                self.waiting.clear();
            }
            _ => self.deliver_all(),
        }
    }

    /// A gang of two to five pods, of which one may be created later or never.
    fn create_gang(&mut self) {
        let size = 2 + self.random.below(4);
        let gang = Gang {
            name: format!("gang-{}", self.truth.made),
            size,
            within: None,
            scheduler: "windlass".to_owned(),
        };
        for _ in 0..size - usize::from(self.random.below(8) == 0) {
            self.create(Some(&gang));
        }
    }

    fn create(&mut self, gang: Option<&Gang>) {
        let gpus = match self.random.below(10) {
            0..4 => GpuWish::Whole([1, 1, 2, 4][self.random.below(4)]),
            4 if gang.is_none() => GpuWish::None,
            _ => GpuWish::Share {
                count: [1, 1, 2][self.random.below(3)],
                milli: [0, 100, 300, 500][self.random.below(4)],
                memory: ShareMemory::Mib([1024, 4096, 8192, 12_288][self.random.below(4)]),
                by: SharedBy::Windlass,
            },
        };
        self.truth.made += 1;
        let uid = format!("uid-{:06}", self.truth.made);
        let pod = PodFacts {
            uid: uid.clone(),
            version: self.truth.next(),
            namespace: "ns".to_owned(),
            name: uid.clone(),
            node: None,
            created: i64::try_from(self.truth.made).expect("few"),
            priority: 0,
            is_ended: false,
            wish: Wish {
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
        self.truth.pods.insert(uid, (pod.clone(), None));
        self.late.push_back(Event::Pod(Box::new(pod)));
    }

    /// kube-scheduler filters nodes and binds to the best. The write succeeds, fails, or loses its answer.
    fn bind(&mut self) {
        let Some(pod) = self.pod_whose_turn_it_is() else { return };
        let pod = &pod;
        let names: Vec<_> = self.truth.nodes.keys().cloned().collect();
        self.index.note_offer(pod, &names);
        let fitting = self.index.filter(pod, &names).into_iter();
        let fitting: Vec<_> =
            fitting.filter_map(|(name, fits)| Some((fits.ok()?, name.to_owned()).1)).collect();
        let ranked = self.index.rank(pod, &fitting, 1).first().map(|name| (*name).to_owned());
        // Filter leaves a gang's member only its planned node.
        let Some(name) = ranked.or_else(|| fitting.first().cloned()) else {
            self.refused += 1;
            return;
        };
        let (placed, turn) = match self.index.arrive(pod, &name) {
            Ok(arrived) => arrived,
            // The place of another member is lost, so the whole gang is given up.
            Err(Refusal::GangLostNode(_)) => {
                self.waiting.retain(|it| it.pod.gang != pod.gang);
                self.refused += 1;
                return;
            }
            Err(refusal) => panic!("a node that fits can serve it: {refusal}"),
        };
        let (pod, placement, number) = (pod.clone(), placed.placement, placed.number);
        match turn {
            Turn::Alone => self.write(&pod.uid, &name, placement, number),
            Turn::Waits(wait) => {
                self.waiting.push(Waiting { pod, node: name, placement, number, wait });
            }
            Turn::Last => {
                self.gangs.0 += 1;
                self.write(&pod.uid, &name, placement, number);
                let (over, waiting): (Vec<_>, Vec<_>) = std::mem::take(&mut self.waiting)
                    .into_iter()
                    .partition(|it| it.pod.gang == pod.gang);
                self.waiting = waiting;
                for Waiting { pod, node, placement, number, .. } in over {
                    // A pod with two bind calls is written once.
                    let is_current = self.index.is_current(&pod.uid, number);
                    if is_current && self.truth.pods.contains_key(&pod.uid) {
                        self.write(&pod.uid, &node, placement, number);
                    }
                }
            }
        }
    }

    fn pod_whose_turn_it_is(&mut self) -> Option<PodFacts> {
        let is_waiting = |pod: &PodFacts| self.waiting.iter().any(|it| it.pod.uid == pod.uid);
        let pods = self.truth.pods.values().map(|(pod, _)| pod);
        // A restarted kube-scheduler binds a waiting pod again.
        let asks_again = self.random.below(20) == 0;
        let pending = pods.filter(|pod| pod.node.is_none() && (asks_again || !is_waiting(pod)));
        let pending: Vec<_> = pending.cloned().collect();
        if pending.is_empty() {
            return None;
        }
        // Prefers a waiting gang now and then, since kube-scheduler takes members in quick succession.
        let waits = |pod: &&PodFacts| self.waiting.iter().any(|it| it.pod.gang == pod.gang);
        let others: Vec<_> = pending.iter().filter(waits).collect();
        Some(match self.random.below(2) {
            0 if !others.is_empty() => others[self.random.below(others.len())].clone(),
            _ => pending[self.random.below(pending.len())].clone(),
        })
    }

    /// A user removes the gang label of a pending pod.
    fn leave_a_gang(&mut self) {
        let pods = self.truth.pods.values().map(|(pod, _)| pod);
        let members = pods.filter(|pod| pod.node.is_none() && pod.gang.is_some());
        let members: Vec<_> = members.map(|pod| pod.uid.clone()).collect();
        if members.is_empty() {
            return;
        }
        let version = self.truth.next();
        let uid = &members[self.random.below(members.len())];
        let (pod, _) = self.truth.pods.get_mut(uid).expect("listed above");
        (pod.gang, pod.version) = (None, version);
        self.late.push_back(Event::Pod(Box::new(pod.clone())));
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

    fn write(&mut self, uid: &str, name: &str, placement: PodPlacement, number: u64) {
        self.index.begin_write(uid, number);
        match self.random.below(10) {
            0 => self.index.end_write(uid, number),
            // The answer is lost. The watch delivers the outcome.
            outcome => {
                let event = self.truth.bind(uid, name, placement);
                self.bound += 1;
                if outcome > 1 {
                    self.late.push_back(event);
                } else {
                    self.deliver_all();
                    self.apply(event);
                }
            }
        }
    }

    /// A pod ends, is deleted, or is deleted by force.
    fn end(&mut self) {
        let uids: Vec<_> = self.truth.pods.keys().cloned().collect();
        if uids.is_empty() {
            return;
        }
        let uid = uids[self.random.below(uids.len())].clone();
        let (mut pod, _) = self.truth.pods.remove(&uid).expect("listed above");
        pod.version = self.truth.next();
        pod.is_ended = true;
        if self.random.below(2) == 0 {
            self.late.push_back(Event::Pod(Box::new(pod)));
        }
        self.late.push_back(Event::PodGone(uid));
    }

    fn toggle_health(&mut self) {
        let n = self.random.below(NODES);
        let Some(node) = self.truth.nodes.get_mut(&format!("node-{n}")) else { return };
        let gpu = self.random.below(node.gpus.len());
        let obstacle = &mut node.gpus[gpu].obstacle;
        *obstacle = if obstacle.is_some() { None } else { Some("xid 79".to_owned()) };
        self.late.push_back(Event::Node(node.clone()));
    }

    /// A node is deleted. Its pods stay until they are deleted too.
    fn lose_or_return_a_node(&mut self) {
        let n = self.random.below(NODES);
        let name = format!("node-{n}");
        if self.truth.nodes.remove(&name).is_some() {
            self.late.push_back(Event::NodeGone(name));
        } else {
            self.truth.nodes.insert(name, node(n));
            self.late.push_back(Event::Node(node(n)));
        }
    }

    /// The watch fails, and a list delivers the newest state of all objects.
    fn list_again(&mut self) {
        self.late.clear();
        let names: HashSet<_> = self.truth.nodes.keys().cloned().collect();
        self.truth.nodes.values().for_each(|node| self.index.set_node(node.clone()));
        self.index.retain_nodes(&names);
        let list = self.index.begin_list();
        let pods = self.truth.pods.values().map(|(pod, _)| pod.clone()).collect();
        self.index.end_list(list, pods);
    }

    fn deliver_some(&mut self) {
        for _ in 0..self.random.below(10) {
            let Some(event) = self.late.pop_front() else { return };
            self.apply(event);
        }
    }

    fn deliver_all(&mut self) {
        while let Some(event) = self.late.pop_front() {
            self.apply(event);
        }
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Node(facts) => self.index.set_node(facts),
            Event::NodeGone(name) => self.index.remove_node(&name),
            Event::Pod(facts) => self.index.set_pod(*facts),
            Event::PodGone(uid) => self.index.remove_pod(&uid),
        }
    }

    /// No GPU is given beyond its capacity.
    fn check_truth(&self) {
        let mut held: BTreeMap<(&str, &str), (u32, u32, bool, usize)> = BTreeMap::new();
        for (pod, placement) in self.truth.pods.values() {
            let (Some(node), Some(placement)) = (&pod.node, placement) else { continue };
            for device in &placement.devices {
                let held = held.entry((node, device.id.as_str())).or_default();
                held.0 += device.memory_mib.unwrap_or(0);
                held.1 += u32::from(device.compute_milli.unwrap_or(0));
                held.2 |= device.is_whole();
                held.3 += 1;
            }
        }
        for (gpu, (mib, milli, is_whole, holders)) in held {
            assert!(mib <= GPU_MIB && milli <= 1000, "{gpu:?}: {mib} MiB, {milli} thousandths");
            assert!(!is_whole || holders == 1, "{gpu:?} is whole and has {holders} holders");
        }
    }

    /// After all events are delivered, the view equals that of a new extender.
    fn check_view(&mut self) {
        self.deliver_all();
        self.index.give_up_all();
        self.waiting.clear();
        let states = |index: &mut Index| -> Vec<_> {
            let nodes = index.inspect();
            // Numbers of products may differ, since they follow the order in which products appear.
            let free = |node: &Inspected<'_>| {
                let gpus = node.state.gpus.iter().map(|gpu| (gpu.state, gpu.is_usable));
                let (cpu, pods) = (node.state.cpu_milli, node.state.pods);
                (node.facts.name.clone(), cpu, pods, gpus.collect::<Vec<_>>())
            };
            nodes.iter().map(free).collect()
        };
        assert_eq!(states(&mut self.index), states(&mut Self::listed(&self.truth)));
    }
}

// === impl Truth ===

impl Truth {
    fn next(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    fn bind(&mut self, uid: &str, node: &str, placement: PodPlacement) -> Event {
        let version = self.next();
        let (pod, placed) = self.pods.get_mut(uid).expect("pending");
        pod.node = Some(node.to_owned());
        pod.version = version;
        pod.gpus = placement.devices.iter().map(|device| device.id.clone()).collect();
        *placed = Some(placement);
        Event::Pod(Box::new(pod.clone()))
    }
}

#[test]
fn no_gpu_is_given_twice_and_none_is_lost() {
    let steps = env::var("WINDLASS_MODEL_STEPS").ok();
    let steps = steps.map_or(STEPS, |text| text.parse().expect("a number of steps"));
    let mut model = Model::new(5);
    for step in 0..steps {
        model.step();
        if step % 10 == 0 {
            model.check_truth();
        }
        if step % 200 == 0 {
            model.check_view();
        }
    }
    assert!(model.bound > steps / 20 && model.refused > 0, "{} bound", model.bound);
    assert!(model.gangs.0 > steps / 1000 && model.gangs.1 > 0, "{:?} gangs", model.gangs);
}
