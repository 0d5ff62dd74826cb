//! Explanations of ranks: the terms of a score, and their text.

use proptest::{collection::vec, prelude::*, sample::select};
use windlass_sched::{
    fit::fit,
    gpu::{Gpu, GpuSet, ModelId, ModelSet},
    node::{Part, ResourceUsage},
    policy::{Explanation, Policy, Rank, Term},
    request::{Gpus, Request},
    scheduler::Scheduler,
    view::{ClusterView, NodeIndex},
};

use crate::world::{catalog, forecast, large_node, request, requests, used_clusters};

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn the_terms_sum_to_the_score(
        view in used_clusters(),
        pods in vec(requests(), 1..10),
        policy in select(&Policy::ALL[1..]),
    ) {
        let mut scheduler = Scheduler::with_forecast(policy, &forecast(&pods), &view, 0);
        for pod in &pods {
            let ranks: Vec<_> = scheduler.ranks(&view, pod).collect();
            let mut explained = Vec::new();
            for (index, node) in (0..).map(NodeIndex).zip(view.nodes()) {
                match scheduler.explain(&view, index, pod) {
                    Ok(Explanation { rank, part, terms }) => {
                        let sum: i32 = terms.iter().map(|term| term.points).sum();
                        prop_assert_eq!(sum, rank.score, "{:?}", terms);
                        prop_assert_eq!(scheduler.choose_part(&view, index, pod), Some(part));
                        explained.push((index, rank));
                    }
                    Err(misfit) => {
                        prop_assert_eq!(fit(view.catalog(), node, pod), Err(misfit));
                    }
                }
            }
            prop_assert_eq!(explained, ranks);
        }
    }
}

#[test]
fn each_loss_has_one_term() {
    let (model, other) = (ModelId(2), ModelId(3));
    let node = |gpus| large_node(vec![Gpu::free(model, 0); gpus]);
    let share = |milli| request(Gpus::share(milli, 0));
    let whole = |count| request(Gpus::Whole(count));
    let explain = |nodes, forecast_pods: &[Request], pod| {
        let view = ClusterView::new(catalog(), nodes);
        let mut scheduler =
            Scheduler::with_forecast(Policy::Windlass, &forecast(forecast_pods), &view, 0);
        scheduler.explain(&view, NodeIndex(0), &pod).expect("the node fits")
    };
    let check = |nodes, forecast_pods: &[Request], pod, name, points: i32| {
        let explanation = explain(nodes, forecast_pods, pod);
        let losses: Vec<_> =
            explanation.terms[1..].iter().filter(|term| term.points != 0).copied().collect();
        assert_eq!(losses, [Term { name, points }], "{explanation}");
    };
    // The forecast has only shares of a half. A share of 300 thousandths leaves a remainder of the value of one half.
    check(vec![node(1)], &[share(500)], share(300), "value cut from a GPU", -250);
    // Three quarters of 8 cores per GPU should stay free, which are 6 cores. The pod leaves 3 of them.
    let mut small = node(1);
    small.cpu_milli = ResourceUsage::free(6000);
    let typical = Request { cpu_milli: 8000, ..whole(1) };
    let pod = Request { cpu_milli: 3000, ..request(Gpus::None) };
    check(vec![small], &[typical], pod, "GPUs left without CPU", -50);
    // A quarter of the demand accepts only this product, which half of the GPUs have.
    let selective = Request { models: ModelSet::NONE.with(model), ..whole(1) };
    let nodes = vec![node(1), large_node(vec![Gpu::free(other, 0)])];
    check(nodes, &[vec![whole(1); 3], vec![selective]].concat(), whole(1), "scarce product", -50);
    // Two thirds of the demanded GPUs are requested in pairs.
    check(vec![node(2)], &[whole(1), whole(2)], whole(1), "broken blocks", -87);
}

#[test]
fn an_explanation_is_one_line() {
    let term = |name, points| Term { name, points };
    let check = |terms, gpus, expected: &str| {
        let (rank, part) = (Rank { score: -25, tie_breaker: 61 }, Part::of(GpuSet(gpus)));
        assert_eq!(Explanation { rank, part, terms }.to_string(), expected);
    };
    check(
        vec![term("fragmentation", 55), term("scarce product", 0), term("broken blocks", -80)],
        0b11,
        "-25 points: fragmentation 55, broken blocks -80; tie 61; GPUs 0,1",
    );
    check(Vec::new(), 0, "-25 points; tie 61");
}
