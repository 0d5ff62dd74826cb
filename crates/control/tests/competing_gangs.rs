//! Gangs that compete for the same GPUs: no gang holds some of them forever, and all gangs start one after another.
//!
//! `WINDLASS_MODEL_RUNS` sets the number of simulations.

use std::{
    collections::{BTreeMap, VecDeque},
    env,
};

use windlass_control::{
    facts::{Gang, GpuFacts, GpuRequest, NodeFacts, PodFacts, ResourceRequest},
    index::{Arrival, GangWait, Index},
};
use windlass_core::annotation::AcceptedGpus;
use windlass_sched::random::Random;

const RUNS: u64 = 1000;
/// Number of filter calls and binds after which all gangs must have started.
const MAX_STEPS: usize = 2000;

/// A scheduler with some gangs to start. Its bind calls follow some time after its filter calls. It does not offer a
/// node that is full of pods with a bind in flight.
struct GangSimulation {
    random: Random,
    index: Index,
    /// GPUs of each node.
    nodes: BTreeMap<String, usize>,
    pending: Vec<PodFacts>,
    /// Binds in flight.
    binds: VecDeque<(PodFacts, String)>,
    /// Members that wait for the others.
    waiting: Vec<(PodFacts, String, GangWait)>,
    version: u64,
}

fn node(n: usize, gpus: usize) -> NodeFacts {
    let gpu = |g: usize| GpuFacts {
        id: Some(format!("GPU-{n}-{g}").parse().expect("an id")),
        model: "H100".to_owned(),
        memory_mib: 81_920,
        has_failed: false,
        restricted_to: None,
        obstacle: None,
    };
    NodeFacts {
        name: format!("node-{n}"),
        cpu_milli: 64_000,
        memory_mib: 262_144,
        pods: 110,
        gpus: (0..gpus).map(gpu).collect(),
        ..NodeFacts::default()
    }
}

fn pod(gang: &Gang, n: usize, gpus: u8) -> PodFacts {
    PodFacts {
        uid: format!("{}-{n}", gang.name),
        resource_version: 1,
        namespace: "ns".to_owned(),
        name: format!("{}-{n}", gang.name),
        node: None,
        created: i64::try_from(n).expect("a small number"),
        priority: 0,
        unschedulable: None,
        is_ended: false,
        resources: ResourceRequest {
            cpu_milli: 500,
            memory_mib: 256,
            gpus: Ok(GpuRequest::Whole(gpus)),
            accepted: AcceptedGpus::default(),
        },
        gang: Some(Ok(gang.clone())),
        gpu_index: None,
        claims: Vec::new(),
        gpus: Vec::new(),
    }
}

fn gpus(pod: &PodFacts) -> usize {
    match pod.resources.gpus {
        Ok(GpuRequest::Whole(count)) => usize::from(count),
        _ => 0,
    }
}

// === impl GangSimulation ===

impl GangSimulation {
    /// Four nodes of 2 to 4 GPUs, and three gangs of 2 to 4 pods: each fits alone.
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut index = Index::default();
        let mut nodes = BTreeMap::new();
        for n in 0..4 {
            let node = node(n, 2 + random.below(3));
            nodes.insert(node.name.clone(), node.gpus.len());
            index.set_node(node);
        }
        let mut pending = Vec::new();
        for name in ["a", "b", "c"] {
            let gang = Gang {
                name: name.to_owned(),
                size: 2 + random.below(3),
                topology_key: None,
                scheduler: "windlass".to_owned(),
            };
            let gpus = 1 + u8::from(random.below(3) > 0);
            pending.extend((0..gang.size).map(|n| pod(&gang, n, gpus)));
        }
        for pod in &pending {
            index.set_pod(pod.clone());
        }
        index.set_synced();
        let (binds, waiting) = (VecDeque::new(), Vec::new());
        Self { random, index, nodes, pending, binds, waiting, version: 1 }
    }

    fn step(&mut self) {
        match self.random.below(8) {
            0 => self.give_up(),
            1..4 => self.bind(),
            _ => self.filter(),
        }
    }

    fn filter(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let nth = self.random.below(self.pending.len());
        let pod = self.pending[nth].clone();
        let names = self.offered_nodes(&pod);
        self.index.add_offer(&pod, &names);
        let fitting = self.index.filter(&pod, &names);
        if let Some((name, _)) = fitting.into_iter().find(|(_, fits)| fits.is_ok()) {
            self.binds.push_back((pod, name.to_owned()));
            self.pending.swap_remove(nth);
        }
    }

    fn offered_nodes(&self, pod: &PodFacts) -> Vec<String> {
        let waiting = self.waiting.iter().map(|(pod, name, _)| (pod, name));
        let binds = self.binds.iter().map(|(pod, name)| (pod, name));
        let mut free = self.nodes.clone();
        for (pod, name) in waiting.chain(binds) {
            // The scheduler may have assigned the same GPUs to two gangs.
            let free_gpus = free.get_mut(name).expect("a node");
            *free_gpus = free_gpus.saturating_sub(gpus(pod));
        }
        free.retain(|_, free| *free >= gpus(pod));
        free.into_keys().collect()
    }

    fn bind(&mut self) {
        let Some((pod, name)) = self.binds.pop_front() else { return };
        match self.index.arrive(&pod, &name) {
            Err(_) => self.pending.push(pod),
            Ok((_, Arrival::Waiting(wait))) => self.waiting.push((pod, name, wait)),
            Ok((_, Arrival::Single | Arrival::Last)) => self.start(pod, name),
        }
    }

    /// Starts all members of the gang, and ends them at once.
    fn start(&mut self, last: PodFacts, name: String) {
        let (arrived, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.waiting).into_iter().partition(|it| it.0.gang == last.gang);
        self.waiting = waiting;
        let gang = last.gang.clone().expect("a gang").expect("a valid gang");
        assert_eq!(arrived.len() + 1, gang.size, "all members start together");
        let arrived = arrived.into_iter().map(|(pod, name, _)| (pod, name));
        let mut members: Vec<_> = arrived.chain([(last, name)]).collect();
        self.version += 1;
        for (pod, name) in &mut members {
            (pod.resource_version, pod.node) = (self.version, Some(name.clone()));
            self.index.set_pod(pod.clone());
        }
        assert_eq!(self.index.conflicts(), 0, "no GPU is allocated twice");
        for (pod, _) in &members {
            self.index.remove_pod(&pod.uid);
        }
    }

    fn give_up(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let nth = self.random.below(self.waiting.len());
        let wait = self.waiting[nth].2.clone();
        let gang = self.waiting[nth].0.gang.clone();
        assert!(self.index.give_up(&wait), "the gang waits");
        let (members, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.waiting).into_iter().partition(|it| it.0.gang == gang);
        self.waiting = waiting;
        self.pending.extend(members.into_iter().map(|(pod, ..)| pod));
    }
}

#[test]
fn competing_gangs_start_one_after_the_other() {
    let runs = env::var("WINDLASS_MODEL_RUNS").ok();
    for seed in 0..runs.map_or(RUNS, |text| text.parse().expect("a number of simulations")) {
        let mut simulation = GangSimulation::new(seed);
        let is_over = |simulation: &GangSimulation| {
            simulation.pending.is_empty()
                && simulation.binds.is_empty()
                && simulation.waiting.is_empty()
        };
        let mut steps = 0;
        while !is_over(&simulation) {
            simulation.step();
            steps += 1;
            assert!(
                steps < MAX_STEPS,
                "seed {seed}: {} pods never start",
                simulation.pending.len()
            );
        }
        assert_eq!(simulation.index.counts().1, 0);
    }
}
