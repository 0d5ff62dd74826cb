//! Accounting: no GPU is allocated beyond its capacity, and a release restores the state exactly.

use proptest::{collection::vec, prelude::*, sample::select};
use windlass_sched::{
    gpu::{Gpu, GpuSet, GpuState, ModelId},
    node::{Conflict, Node, Part, ResourceUsage},
    policy::Policy,
    request::{Gpus, ProfileId, Request},
    scheduler::Scheduler,
    view::{ClusterView, NodeIndex, Placement},
};

use crate::world::{catalog, idle_clusters, large_node, mib_of, request, requests};

/// A change to a cluster. [`Step::ForeignAllocation`] is a pod of another scheduler, with an arbitrary placement.
#[derive(Clone, Copy, Debug)]
enum Step {
    Schedule(Request),
    ForeignAllocation { request: Request, node: u32, gpus: u64, slices: u8 },
    Release(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let positions = prop_oneof![
        (0..16_u32).prop_map(|position| 1_u64 << position),
        (0..1_u64 << 17),
        (1..=16_u32).prop_map(|count| (1_u64 << count) - 1),
    ];
    let anywhere = (requests(), 0..12_u32, positions, prop_oneof![Just(0), any::<u8>()]);
    let step = prop_oneof![
        4 => requests().prop_map(Step::Schedule),
        2 => anywhere.prop_map(|(request, node, gpus, slices)| {
            Step::ForeignAllocation { request, node, gpus, slices }
        }),
        3 => (0..1000_usize).prop_map(Step::Release),
    ];
    vec(step, 1..400)
}

/// A cluster, and the pods that were placed on it.
struct Ledger {
    empty: ClusterView,
    view: ClusterView,
    running: Vec<(Request, Placement)>,
}

impl Ledger {
    fn apply(&mut self, scheduler: &mut Scheduler, step: Step) {
        match step {
            Step::Schedule(request) => {
                if let Some(placement) = scheduler.choose_placement(&self.view, &request) {
                    self.view.allocate(&request, placement).expect("a decision fits");
                    self.running.push((request, placement));
                }
            }
            Step::ForeignAllocation { request, node, gpus, slices } => {
                let count = u32::try_from(self.view.nodes().len()).expect("at most twelve");
                let part = Part { gpus: GpuSet(gpus), memory_slices: slices };
                self.allocate_foreign(request, Placement { node: NodeIndex(node % count), part });
            }
            Step::Release(nth) if !self.running.is_empty() => {
                let (request, placement) = self.running.remove(nth % self.running.len());
                self.view.release(&request, placement);
            }
            Step::Release(_) => {}
        }
    }

    /// Allocates a part that may not be free. A conflict must leave the view unchanged.
    fn allocate_foreign(&mut self, request: Request, placement: Placement) {
        let before = self.view.clone();
        match self.view.allocate(&request, placement) {
            Ok(()) => self.running.push((request, placement)),
            Err(Conflict { gpus }) => {
                assert_eq!(gpus, placement.part.gpus);
                assert_eq!(self.view.nodes(), before.nodes());
                assert_eq!(self.view.versions(), before.versions());
            }
        }
    }

    /// Checks that the view equals a view rebuilt from the running pods, and the state that this test computes.
    fn check(&self) {
        let mut rebuilt = self.empty.clone();
        for (request, placement) in &self.running {
            rebuilt.allocate(request, *placement).expect("the running pods fit each other");
        }
        assert_eq!(self.view.nodes(), rebuilt.nodes());
        for (index, (node, empty)) in (0..).zip(self.view.nodes().iter().zip(self.empty.nodes())) {
            let pods =
                self.running.iter().filter(|(_, placement)| placement.node == NodeIndex(index));
            let pods: Vec<_> =
                pods.map(|(request, placement)| (*request, placement.part)).collect();
            check_node(node, empty, &pods);
        }
    }
}

fn check_node(node: &Node, empty: &Node, pods: &[(Request, Part)]) {
    let free = |total: u32, amount_of: fn(&Request) -> u32| {
        let allocated: u32 = pods.iter().map(|(request, _)| amount_of(request)).sum();
        total.saturating_sub(allocated)
    };
    assert_eq!(node.cpu_milli.free, free(empty.cpu_milli.total, |it| it.cpu_milli));
    assert_eq!(node.memory_mib.free, free(empty.memory_mib.total, |it| it.memory_mib));
    assert_eq!(node.pods.free, free(empty.pods.total, |_| 1));
    for (position, (gpu, empty)) in node.gpus.iter().zip(&empty.gpus).enumerate() {
        let holders = pods.iter().filter(|(_, part)| part.gpus.iter().any(|it| it == position));
        let holders: Vec<_> =
            holders.map(|(request, part)| (request.gpus, part.memory_slices)).collect();
        assert_eq!(*gpu, Gpu { state: state_of(empty, &holders), ..*empty });
    }
}

/// The state of a GPU with these holders, which together fit on it.
fn state_of(gpu: &Gpu, holders: &[(Gpus, u8)]) -> GpuState {
    let (mut allocated_milli, mut mib, mut slices, mut whole_holders) = (0, 0, 0, 0);
    for (gpus, place) in holders {
        match *gpus {
            Gpus::None => panic!("a pod without GPUs holds one"),
            Gpus::Whole(_) => whole_holders += 1,
            Gpus::Share { compute_milli, memory, .. } => {
                allocated_milli += compute_milli;
                mib += mib_of(gpu, memory);
            }
            Gpus::Partition(_) => {
                assert_eq!(slices & place, 0, "two instances overlap: {holders:?}");
                assert_ne!(*place, 0, "an instance without memory: {holders:?}");
                slices |= place;
            }
        }
    }
    let kinds = [whole_holders > 0, allocated_milli > 0 || mib > 0, slices > 0];
    assert!(kinds.iter().filter(|is_used| **is_used).count() <= 1, "two kinds of use: {holders:?}");
    assert!(
        allocated_milli <= 1000 && mib <= gpu.memory_mib && whole_holders <= 1,
        "over 100 %: {holders:?}"
    );
    match (whole_holders, slices) {
        (0, 0) => {
            GpuState::Shared { free_milli: 1000 - allocated_milli, free_mib: gpu.memory_mib - mib }
        }
        (0, slices) => GpuState::Partitioned { memory_slices: slices },
        _ => GpuState::Whole,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 50, ..ProptestConfig::default() })]

    #[test]
    fn the_view_equals_one_rebuilt_from_the_running_pods(
        empty in idle_clusters(),
        steps in steps(),
        policy in select(&Policy::ALL[..]),
    ) {
        let mut scheduler = Scheduler::learning(policy, 7);
        let mut ledger = Ledger { view: empty.clone(), empty, running: Vec::new() };
        for step in steps {
            ledger.apply(&mut scheduler, step);
            ledger.check();
        }
        while !ledger.running.is_empty() {
            ledger.apply(&mut scheduler, Step::Release(ledger.running.len() / 2));
        }
        prop_assert_eq!(ledger.view.nodes(), ledger.empty.nodes());
    }
}

fn only_gpu(position: usize, slices: u8) -> Part {
    Part { gpus: GpuSet::single(position), memory_slices: slices }
}

#[test]
fn a_part_that_is_not_free_or_not_of_the_right_size_is_refused() {
    let profile = Gpus::Partition(ProfileId(2));
    let share = |milli, mib| Gpus::share(milli, mib);
    let check = |allocated: Option<(Gpus, Part)>, gpus: Gpus, part: Part| {
        let mut node = large_node(vec![Gpu::free(ModelId(0), 40_960); 2]);
        if let Some((gpus, part)) = allocated {
            node.allocate(&request(gpus), part).expect("the node is empty");
        }
        let before = node.clone();
        let conflict = node.allocate(&request(gpus), part).expect_err("it cannot be allocated");
        assert_eq!(conflict, Conflict { gpus: part.gpus }, "{allocated:?}, {gpus:?} {part:?}");
        assert_eq!(node, before);
    };
    let first = only_gpu(0, 0);
    let both = Part { gpus: GpuSet(0b11), memory_slices: 0 };
    check(None, Gpus::Whole(2), first);
    check(None, Gpus::Whole(1), both);
    check(None, Gpus::None, first);
    check(None, share(500, 0), both);
    check(None, share(500, 0), Part::default());
    check(None, share(500, 0), only_gpu(2, 0));
    check(None, share(0, 40_961), first);
    check(None, profile, first);
    check(Some((Gpus::Whole(1), first)), Gpus::Whole(2), both);
    check(Some((Gpus::Whole(1), first)), share(1, 0), first);
    check(Some((share(1, 0), first)), Gpus::Whole(1), first);
    check(Some((share(600, 0), first)), share(401, 0), first);
    check(Some((share(0, 20_000), first)), share(0, 20_961), first);
    check(Some((share(0, 1), first)), profile, only_gpu(0, 0b11));
    check(Some((profile, only_gpu(0, 0b11))), profile, only_gpu(0, 0b11));
    check(Some((profile, only_gpu(0, 0b11))), share(1, 0), first);
    check(Some((profile, only_gpu(0, 0b11))), Gpus::Whole(1), first);
    assert_eq!(
        Conflict { gpus: GpuSet(0b101) }.to_string(),
        "the GPUs 0,2 are not free, or are not as many as requested",
    );
}

#[test]
fn a_node_with_an_excess_is_full_until_the_excess_is_released() {
    let mut node = large_node(Vec::new());
    node.cpu_milli = ResourceUsage::free(10_000);
    let [first, second] =
        [8000, 5000].map(|cpu_milli| Request { cpu_milli, ..request(Gpus::None) });
    let part = Part::default();
    node.allocate(&first, part).expect("no GPU is requested");
    node.allocate(&second, part).expect("other schedulers may exceed the total");
    assert_eq!(node.cpu_milli.free, 0);
    node.release(&second, part);
    assert_eq!(node.cpu_milli.free, 2000, "only the first pod is left");
    node.release(&first, part);
    assert_eq!(node.cpu_milli, ResourceUsage::free(10_000));
}

#[test]
fn pods_on_a_gpu_that_failed_later_are_still_counted() {
    for (gpus, slices) in
        [(Gpus::Whole(1), 0), (Gpus::share(300, 0), 0), (Gpus::Partition(ProfileId(2)), 0b11)]
    {
        let healthy = Gpu::free(ModelId(0), 40_960);
        let mut before = large_node(vec![healthy]);
        before.allocate(&request(gpus), only_gpu(0, slices)).expect("the part is free");
        before.gpus[0].is_usable = false;
        let mut rebuilt = large_node(vec![Gpu { is_usable: false, ..healthy }]);
        rebuilt
            .allocate(&request(gpus), only_gpu(0, slices))
            .expect("the pod already holds the GPU");
        assert_eq!(rebuilt, before, "{gpus:?}");
    }
}

#[test]
fn an_empty_share_does_not_affect_the_holder_of_the_whole_gpu() {
    let mut node = large_node(vec![Gpu::free(ModelId(0), 40_960)]);
    let empty_share = request(Gpus::share(0, 0));
    let part = only_gpu(0, 0);
    node.allocate(&empty_share, part).expect("the share has no amount");
    node.allocate(&request(Gpus::Whole(1)), part).expect("the GPU has no holder");
    node.release(&empty_share, part);
    assert_eq!(node.gpus[0].state, GpuState::Whole);
}

#[test]
fn instances_are_allocated_and_released_in_any_order() {
    let partition = request(Gpus::Partition(ProfileId(2)));
    let mut view =
        ClusterView::new(catalog(), vec![large_node(vec![Gpu::free(ModelId(0), 40_960)])]);
    let empty = view.clone();
    let placement_of = |slices| Placement { node: NodeIndex(0), part: only_gpu(0, slices) };
    for places in [[0b11, 0b1100, 0b11_0000], [0b11_0000, 0b11, 0b1100]] {
        for place in places {
            view.allocate(&partition, placement_of(place)).expect("the part is free");
        }
        let state = GpuState::Partitioned { memory_slices: 0b11_1111 };
        assert_eq!(view.nodes()[0].gpus[0].state, state);
        assert_eq!(view.nodes()[0].gpus[0].idle_milli(), 250);
        for place in [0b1100, 0b11, 0b11_0000] {
            view.release(&partition, placement_of(place));
        }
        assert_eq!(view.nodes(), empty.nodes());
    }
}
