//! Benchmark of planning a chain of stages: time, and objective value of the plan as a share of its upper bound.
//!
//! `cargo bench -p windlass-pipeline --bench plan`. Exits with 1 if fifty stages on two hundred devices take a second
//! or more. *Alike* has four kinds of boards; in *unlike*, each board has a different link rate.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use windlass_pipeline::{Fleet, Layout, Pipeline, Plan};

/// Numbers of stages and nodes; each node has four devices.
const SIZES: [(usize, usize); 4] = [(5, 5), (10, 10), (50, 50), (200, 200)];
/// The size with a time budget.
const BUDGET: ((usize, usize), Duration) = ((50, 50), Duration::from_secs(1));

fn main() -> io::Result<ExitCode> {
    let mut out = io::stdout().lock();
    writeln!(out, "stages  devices  links   plan ms  of the bound")?;
    let mut is_within_budget = true;
    for size in SIZES {
        for is_alike in [true, false] {
            let (pipeline, fleet) = (chain(size.0), boards(size.1, is_alike));
            let started = Instant::now();
            let plan = Plan::of(&pipeline, &fleet, Layout::Planned).map_err(io::Error::other)?;
            let elapsed = started.elapsed();
            is_within_budget &= size != BUDGET.0 || elapsed < BUDGET.1;
            writeln!(
                out,
                "{:6}  {:7}  {:6}  {:7.1}  {:9.1} %",
                size.0,
                4 * size.1,
                if is_alike { "alike" } else { "unlike" },
                1e3 * elapsed.as_secs_f64(),
                100.0 * plan.objective.amount / plan.bound.amount,
            )?;
        }
    }
    Ok(if is_within_budget { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Stages with up to four replicas, each on one of four kinds of devices or on a CPU.
fn chain(stages: usize) -> Pipeline {
    let mut text = "name: chain\nstages:\n".to_owned();
    for stage in 0..stages {
        let (device, cpu, output) = (5 + stage % 7, 40 + stage % 11, 500 * (stage % 9));
        let alternatives = format!(
            "[{{resource: a/r{}, time: {device}ms}}, {{cpus: 1, time: {cpu}ms}}]",
            stage % 4
        );
        writeln!(text, "- {{name: s{stage}, replicas: 4, output: {output}, on: {alternatives}}}")
            .expect("a string");
    }
    text.push_str("links:\n");
    for stage in 1..stages {
        writeln!(text, "- {{from: s{}, to: s{stage}}}", stage - 1).expect("a string");
    }
    Pipeline::parse(Path::new("chain.yaml"), &text).expect("a pipeline")
}

fn boards(nodes: usize, is_alike: bool) -> Fleet {
    let mut text = "nodes:\n".to_owned();
    for node in 0..nodes {
        let rate = if is_alike { 1000 } else { 100 + 7 * node };
        let kind = node % 4;
        writeln!(
            text,
            "- {{name: n{node}, cpus: 4, rate: {rate}Mbit, devices: [{{resource: a/r{kind}, count: 4}}]}}"
        )
        .expect("a string");
    }
    Fleet::parse(Path::new("boards.yaml"), &text).expect("boards")
}
