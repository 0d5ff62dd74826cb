//! Shares of several GPUs, and shares of memory in percent.

use windlass_sched::{
    fit::{Fit, Misfit, fit},
    forecast::RequestCount,
    gpu::{Gpu, GpuSet, GpuState, ModelId},
    node::{Node, Part},
    policy::Policy,
    prices::Prices,
    request::{Gpus, Request, ShareMemory, SizeClass, share_of},
    scheduler::Scheduler,
    view::{ClusterView, NodeIndex, Placement},
};

use crate::world::{catalog, forecast, large_node, request};

const A100: ModelId = ModelId(0);

fn shares(count: u8, compute_milli: u16, memory: ShareMemory) -> Request {
    request(Gpus::Share { count, compute_milli, memory })
}

fn compute(count: u8, milli: u16) -> Request {
    shares(count, milli, ShareMemory::Mib(0))
}

/// A node with one GPU per entry, of which so many thousandths are allocated.
fn node(allocated_milli: &[u16]) -> Node {
    let mut node = large_node(vec![Gpu::free(A100, 40_000); allocated_milli.len()]);
    for (position, milli) in allocated_milli.iter().enumerate().filter(|(_, milli)| **milli > 0) {
        node.allocate(&compute(1, *milli), Part::of(GpuSet::single(position)))
            .expect("the part is free");
    }
    node
}

#[test]
fn each_share_of_a_pod_is_on_another_gpu() {
    let pod = shares(2, 0, ShareMemory::Mib(3000));
    let mut view = ClusterView::new(catalog(), vec![node(&[0, 0, 0])]);
    let placement = Placement { node: NodeIndex(0), part: Part::of(GpuSet(0b101)) };
    view.allocate(&pod, placement).expect("both are free");
    let free_mib = |view: &ClusterView| -> Vec<_> {
        let free = view.nodes()[0].gpus.iter().map(|gpu| match gpu.state {
            GpuState::Shared { free_mib, .. } => free_mib,
            state => panic!("{state:?}"),
        });
        free.collect()
    };
    assert_eq!(free_mib(&view), [37_000, 40_000, 37_000]);
    view.release(&pod, placement);
    assert_eq!(free_mib(&view), [40_000, 40_000, 40_000]);
    let one = Part::of(GpuSet(0b1));
    view.allocate(&pod, Placement { part: one, ..placement })
        .expect_err("the pod requests two GPUs");
}

#[test]
fn a_node_needs_a_gpu_with_free_capacity_for_each_share() {
    let node = node(&[600, 0, 500]);
    let check = |pod: Request, expected: Result<Fit, Misfit>| {
        assert_eq!(fit(&catalog(), &node, &pod), expected);
    };
    check(compute(2, 500), Ok(Fit::Share { gpus: GpuSet(0b110), count: 2 }));
    check(compute(3, 400), Ok(Fit::Share { gpus: GpuSet(0b111), count: 3 }));
    let memory = ShareMemory::Mib(0);
    check(
        compute(3, 500),
        Err(Misfit::Shares { compute_milli: 500, memory, requested: 3, free: 2 }),
    );
}

#[test]
fn gpus_are_chosen_greedily() {
    let check = |policy, allocated_milli: &[u16], forecast_pods: &[Request], pod, expected: u64| {
        let view = ClusterView::new(catalog(), vec![node(allocated_milli)]);
        let mut scheduler = Scheduler::with_forecast(policy, &forecast(forecast_pods), &view, 0);
        let placement = scheduler.choose_placement(&view, &pod).expect("the pod fits");
        assert_eq!(placement.part, Part::of(GpuSet(expected)), "{policy:?}: {allocated_milli:?}");
    };
    check(Policy::FirstFit, &[900, 0, 0, 0], &[], compute(2, 300), 0b110);
    // The fullest GPUs with enough free capacity.
    check(Policy::BestFit, &[0, 300, 0, 600, 800], &[], compute(2, 300), 0b1010);
    check(Policy::BestFit, &[0, 300, 0, 600, 800], &[], compute(3, 300), 0b1011);
    // A GPU with 900 or 1000 free thousandths fits three shares of 300, one with 800 fits two.
    check(Policy::Windlass, &[100, 0, 0], &[compute(1, 300)], compute(2, 100), 0b110);
    check(Policy::Windlass, &[100, 0, 0], &[compute(1, 300)], compute(3, 100), 0b111);
}

#[test]
fn random_shares_are_on_different_gpus() {
    let view = ClusterView::new(catalog(), vec![node(&[0; 4])]);
    for seed in 0..20 {
        let mut scheduler = Scheduler::learning(Policy::Random, seed);
        let placement = scheduler.choose_placement(&view, &compute(3, 300)).expect("the pod fits");
        assert_eq!(placement.part.gpus.len(), 3);
    }
}

#[test]
fn a_percentage_is_of_the_memory_of_the_allocated_gpu() {
    let half = shares(1, 0, ShareMemory::Percent(50));
    let gpus = [10_000, 30_000, 0].map(|memory_mib| Gpu::free(A100, memory_mib));
    let mut node = large_node(gpus.to_vec());
    // The third GPU has unknown memory, so it cannot serve a percentage.
    let gpus = GpuSet(0b11);
    assert_eq!(fit(&catalog(), &node, &half), Ok(Fit::Share { gpus, count: 1 }));
    let both = shares(2, 0, ShareMemory::Percent(50));
    node.allocate(&both, Part::of(gpus)).expect("both are free");
    let free = |gpu: &Gpu| gpu.idle_milli();
    assert_eq!(node.gpus.iter().map(free).collect::<Vec<_>>(), [500, 500, 1000]);
    node.allocate(&half, Part::of(GpuSet::single(1))).expect("the other half");
    let last = Misfit::Share { compute_milli: 0, memory: ShareMemory::Percent(51) };
    assert_eq!(fit(&catalog(), &node, &shares(1, 0, ShareMemory::Percent(51))), Err(last));
    node.release(&half, Part::of(GpuSet::single(1)));
    node.release(&both, Part::of(gpus));
    assert_eq!(node.free_gpus(), GpuSet(0b111));
}

#[test]
fn a_request_for_several_shares_counts_each_of_them() {
    let view = ClusterView::new(catalog(), vec![large_node(vec![Gpu::free(A100, 10_000); 2])]);
    for memory in [ShareMemory::Mib(3000), ShareMemory::Percent(30)] {
        assert_eq!(view.average_milli(&shares(2, 0, memory)), 600);
        assert_eq!(share_of(10_000, 100, memory), 300);
    }
    let pod = compute(3, 250);
    assert_eq!((pod.gpu_count(), pod.gpu_milli(), pod.class()), (3, 750, SizeClass::Fraction));
    let count =
        |pod: Request, pods| RequestCount { gpu_milli: pod.gpu_milli(), request: pod, pods };
    let others = |pods| count(compute(1, 470), pods);
    assert_eq!(
        Prices::of(&[count(compute(2, 300), 7.0), others(5.0)]),
        Prices::of(&[count(compute(1, 300), 14.0), others(5.0)]),
    );
}
