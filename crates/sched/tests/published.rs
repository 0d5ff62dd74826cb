//! The published experiment, on the public trace: `WINDLASS_OPENB=DIR cargo test --release -p windlass-sched`.

use std::{env, fs, path::Path};

use windlass_sched::{
    policy::Policy,
    simulation::{KnowledgeSource, Settings, Simulation, fill},
    trace,
};

/// Number of seeds per mean. A single run of FGD or best fit is within 0.2 points of the mean.
const SEEDS: [u64; 3] = [1, 2, 3];
/// A single run of the random policy varies by 0.4 points, so three runs are too few.
const SEEDS_OF_CHANCE: [u64; 10] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10];
/// Largest distance from a published mean, in points.
const NEAR: f64 = 0.25;
/// Percentage points that Windlass' policy allocates beyond FGD.
const LEAD: f64 = 0.3;

/// Mean percentages of allocated GPUs when pods asked for 100 % and for 130 % of them.
#[derive(Clone, Copy, Debug)]
struct Allocated {
    at_100: f64,
    at_130: f64,
}

/// The public trace, if the variable names its folder.
fn simulation() -> Option<Simulation> {
    let dir = env::var_os("WINDLASS_OPENB")?;
    let read = |name: &str| {
        let path = Path::new(&dir).join(name);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let view = trace::nodes(&read("openb_node_list_gpu_node.csv")).expect("the trace's nodes");
    let pods = trace::pods(&read("openb_pod_list_default.csv"), view.catalog());
    Some(Simulation::new(view, pods.expect("the trace's pods")).expect("GPUs and demand"))
}

fn allocated(simulation: &Simulation, policy: Policy, knowledge: KnowledgeSource) -> Allocated {
    let seeds = if policy == Policy::Random { &SEEDS_OF_CHANCE[..] } else { &SEEDS[..] };
    let run = |seed: &u64| {
        let settings = Settings { policy, knowledge, seed: *seed };
        fill(simulation, &settings, 1.3).allocated
    };
    let runs: Vec<_> = seeds.iter().map(run).collect();
    let mean = |column: usize| {
        // The last arrival may be just below a percent.
        let of = |run: &Vec<Option<f64>>| run.get(column).copied().flatten().or(run[column - 1]);
        let found: Vec<f64> = runs.iter().filter_map(of).collect();
        assert_eq!(found.len(), runs.len(), "pods arrive at each percent");
        found.iter().sum::<f64>() / f64::from(u32::try_from(found.len()).expect("few seeds"))
    };
    Allocated { at_100: mean(100), at_130: mean(130) }
}

#[test]
fn published_means_are_reproduced() {
    let Some(simulation) = simulation() else {
        return eprintln!("left out: WINDLASS_OPENB names no folder with the public trace");
    };
    for (policy, mean) in [(Policy::Random, 86.3), (Policy::BestFit, 92.86), (Policy::Fgd, 95.23)] {
        let found = allocated(&simulation, policy, KnowledgeSource::Trace).at_100;
        assert!((found - mean).abs() <= NEAR, "{policy:?}: {found:.2}, published {mean}");
    }
}

#[test]
fn our_own_policy_allocates_more_than_fgd() {
    let Some(simulation) = simulation() else {
        return eprintln!("left out: WINDLASS_OPENB names no folder with the public trace");
    };
    for knowledge in [KnowledgeSource::Trace, KnowledgeSource::History] {
        let fgd = allocated(&simulation, Policy::Fgd, knowledge);
        let own = allocated(&simulation, Policy::Windlass, knowledge);
        let leads = [own.at_100 - fgd.at_100, own.at_130 - fgd.at_130];
        assert!(leads.iter().all(|lead| *lead >= LEAD), "{knowledge:?}: {own:?} against {fgd:?}");
    }
}
