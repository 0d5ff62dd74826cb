//! Victims of preemption, compared with an exhaustive search on small nodes.

use proptest::{collection::vec, prelude::*, sample::select};
use windlass_sched::{
    fit::fit,
    gpu::{Gpu, GpuSet, ModelId},
    node::{Node, Part, ResourceUsage},
    policy::Policy,
    request::{Gpus, ProfileId, Request},
    scheduler::Scheduler,
    victims::{Cost, Pod, Victims, victims},
    view::{Catalog, ClusterView, Placement},
};

use crate::world::{catalog, idle_nodes, large_node, request, requests};

fn node_without(node: &Node, pods: &[Pod], evicted: &[usize]) -> Node {
    let mut node = node.clone();
    for position in evicted {
        node.release(&pods[*position].request, pods[*position].part);
    }
    node
}

fn allocate(node: &mut Node, pods: &[Pod]) {
    for pod in pods {
        node.allocate(&pod.request, pod.part).expect("the pods fit");
    }
}

/// Cost by the definition of kube-scheduler. Its sum counts each priority from the lowest one, `i32::MIN`.
fn cost(pods: &[Pod], evicted: &[usize]) -> Cost {
    let evicted: Vec<_> = evicted.iter().map(|it| pods[*it]).collect();
    Cost {
        violations: evicted.iter().filter(|pod| pod.violates_budget).count(),
        highest_priority: evicted.iter().map(|pod| pod.priority).max().unwrap_or(i32::MIN),
        priority_sum: evicted.iter().map(|pod| i64::from(pod.priority) + (1 << 31)).sum(),
        count: evicted.len(),
    }
}

/// The least cost over all subsets of the pods that may be evicted, or `None` if none of them suffices.
fn least_cost(
    catalog: &Catalog,
    node: &Node,
    pods: &[Pod],
    newcomer: &Request,
    priority: i32,
) -> Option<Cost> {
    let choices = (0..1_u32 << pods.len())
        .map(|bits| -> Vec<usize> { (0..pods.len()).filter(|it| bits >> it & 1 == 1).collect() });
    let is_possible = |evicted: &Vec<usize>| {
        evicted.iter().all(|it| pods[*it].priority < priority)
            && fit(catalog, &node_without(node, pods, evicted), newcomer).is_ok()
    };
    choices.filter(is_possible).map(|evicted| cost(pods, &evicted)).min()
}

/// Places those of the pods that fit.
fn filled(node: Node, pods: &[(Request, i32, bool)], policy: Policy) -> (Node, Vec<Pod>) {
    let mut view = ClusterView::new(catalog(), vec![node]);
    let mut scheduler = Scheduler::learning(policy, 3);
    let mut running = Vec::new();
    for (request, priority, violates_budget) in pods.iter().copied() {
        if let Some(placement) = scheduler.choose_placement(&view, &request) {
            let Placement { part, .. } = placement;
            view.allocate(&request, placement).expect("a decision fits");
            running.push(Pod { request, part, priority, violates_budget });
        }
    }
    (view.nodes()[0].clone(), running)
}

fn pods(count: usize) -> impl Strategy<Value = Vec<(Request, i32, bool)>> {
    let priorities = prop_oneof![4 => -2..=2, 1 => any::<i32>()];
    let pods = vec((requests(), priorities, prop::bool::weighted(0.3)), 1..=count);
    // Replicas are equal.
    (pods, 1..=3_usize).prop_map(move |(pods, copies)| {
        let pods: Vec<_> = pods.into_iter().flat_map(|pod| vec![pod; copies]).collect();
        pods[..pods.len().min(count)].to_vec()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn victims_have_the_least_cost(
        node in idle_nodes(),
        pods in pods(8),
        newcomer in requests(),
        priority in -2..=3,
        policy in select(&Policy::ALL[..]),
    ) {
        let (node, pods) = filled(node, &pods, policy);
        let catalog = catalog();
        let found = victims(&catalog, &node, &pods, &newcomer, priority);
        let least = least_cost(&catalog, &node, &pods, &newcomer, priority);
        prop_assert_eq!(found.as_ref().map(|it| it.cost), least);
        let Some(Victims { pods: evicted, cost: found_cost }) = found else { return Ok(()) };
        prop_assert_eq!(found_cost, cost(&pods, &evicted));
        prop_assert!(evicted.is_sorted());
        prop_assert!(fit(&catalog, &node_without(&node, &pods, &evicted), &newcomer).is_ok());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    // The search is not exhaustive for so many pods.
    #[test]
    fn no_victim_is_unnecessary(
        gpus in vec(0..3_u8, 8..=16),
        pods in pods(60),
        newcomer in requests(),
    ) {
        let gpus = gpus.into_iter().map(|model| Gpu::free(ModelId(model), 40_960)).collect();
        let cpu_milli = ResourceUsage::free(200_000);
        let (node, pods) = filled(Node { cpu_milli, ..large_node(gpus) }, &pods, Policy::BestFit);
        let catalog = catalog();
        let found = victims(&catalog, &node, &pods, &newcomer, 3);
        let Some(Victims { pods: evicted, .. }) = found else { return Ok(()) };
        prop_assert!(fit(&catalog, &node_without(&node, &pods, &evicted), &newcomer).is_ok());
        for kept in &evicted {
            let others: Vec<_> = evicted.iter().copied().filter(|it| it != kept).collect();
            let node = node_without(&node, &pods, &others);
            prop_assert!(fit(&catalog, &node, &newcomer).is_err(), "{} need not be evicted", kept);
        }
    }
}

#[test]
fn the_cheapest_victims_are_those_of_kube_scheduler() {
    let pod_of = |gpus, part, priority| Pod {
        request: request(gpus),
        part,
        priority,
        violates_budget: false,
    };
    let on = |gpu: usize| Part::of(GpuSet::single(gpu));
    let half = Gpus::share(500, 0);
    let check = |pods: &[Pod], newcomer, priority, expected: Option<&[usize]>| {
        let mut node = large_node(vec![Gpu::free(ModelId(0), 40_960); 2]);
        allocate(&mut node, pods);
        let found = victims(&catalog(), &node, pods, &request(newcomer), priority);
        assert_eq!(found.as_ref().map(|it| &it.pods[..]), expected, "{pods:?}");
    };
    let one = Gpus::Whole(1);
    // The pod fits without eviction.
    check(&[pod_of(one, on(0), 0)], one, 5, Some(&[]));
    // Pods of the same priority are not evicted.
    check(&[pod_of(one, on(0), 5), pod_of(one, on(1), 5)], one, 5, None);
    check(&[pod_of(one, on(0), 5), pod_of(one, on(1), 4)], one, 5, Some(&[1]));
    check(&[pod_of(one, on(0), 3), pod_of(one, on(1), 3)], Gpus::Whole(2), 5, Some(&[0, 1]));
    // Pods of lower priority are evicted first, whatever their number.
    let halves = [pod_of(one, on(0), 3), pod_of(half, on(1), 2), pod_of(half, on(1), 2)];
    check(&halves, one, 5, Some(&[1, 2]));
    // Among equal priorities the fewest pods are evicted.
    let halves = [pod_of(half, on(0), 2), pod_of(half, on(0), 2), pod_of(one, on(1), 2)];
    check(&halves, one, 5, Some(&[2]));
    // A violated disruption budget costs more than a higher priority.
    let protected = Pod { violates_budget: true, ..pod_of(one, on(0), 1) };
    check(&[protected, pod_of(one, on(1), 4)], one, 5, Some(&[1]));
    // Only MIG instances that overlap the place of the larger instance are evicted.
    let instance = |gpu, slices, priority| {
        pod_of(Gpus::Partition(ProfileId(2)), Part { memory_slices: slices, ..on(gpu) }, priority)
    };
    let instances = [instance(0, 0b11, 1), instance(0, 0b1100, 1), instance(0, 0b11_0000, 1)];
    let whole = pod_of(one, on(1), 9);
    let large = Gpus::Partition(ProfileId(3));
    check(&[&instances[..], &[whole]].concat(), large, 5, Some(&[2]));
}

#[test]
fn a_search_with_many_pods_is_limited_and_deterministic() {
    let pod = |n: u32| Pod {
        request: Request { cpu_milli: 500 + 7 * n, ..request(Gpus::None) },
        part: Part::default(),
        priority: 0,
        violates_budget: false,
    };
    let pods: Vec<_> = (0..250).map(pod).collect();
    let mut node = large_node(Vec::new());
    node.cpu_milli = ResourceUsage::free(pods.iter().map(|pod| pod.request.cpu_milli).sum());
    allocate(&mut node, &pods);
    let newcomer = Request { cpu_milli: 20_000, ..request(Gpus::None) };
    let catalog = catalog();
    let found = victims(&catalog, &node, &pods, &newcomer, 1).expect("they suffice");
    assert!(fit(&catalog, &node_without(&node, &pods, &found.pods), &newcomer).is_ok());
    assert_eq!(victims(&catalog, &node, &pods, &newcomer, 1), Some(found));
}
