//! Value and cost of placement: `cargo bench -p windlass --bench placement`.
//!
//! Jobs start and end on each machine in 10,000 random sequences. They get their devices from Windlass, from the
//! best-effort policy of NVIDIA's plugin, from the lowest free device on, or at random. The numbers are the same in
//! every run. Then the solver is compared with its budgets; with `--strict` a missed budget ends the run with 1.
//! `--write` puts the tables of the sequences into `docs/placement.md`.

mod best_effort;
mod by_hand;
mod joint;
mod machines;
mod page;
mod pairs;
mod random;
mod replicas;
#[path = "../agent/report.rs"]
#[expect(dead_code, reason = "some rows are for the other benchmark")]
mod report;
#[path = "../agent/samples.rs"]
#[expect(dead_code, reason = "some figures are for the other benchmark")]
mod samples;
mod sequences;
mod solver;
mod strategies;
mod workload;

use std::io::{self, Write as _};

use anyhow::{Context as _, Result, bail};
use clap::{Parser, ValueEnum};
use machines::Machine;
use report::Report;

#[derive(Debug, Parser)]
struct Arguments {
    /// Benchmark to run [default: both]
    parts: Vec<Part>,
    /// Number of sequences per machine.
    #[arg(long, default_value_t = 10_000)]
    sequences: usize,
    /// Put the tables of the sequences into docs/placement.md.
    #[arg(long)]
    write: bool,
    /// End with 1 if a budget is missed.
    #[arg(long)]
    strict: bool,
    /// Flag that cargo passes to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    Solver,
    Sequences,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the async runtime")?;
    let machines = runtime.block_on(machines::all())?;
    let is_selected = |part| arguments.parts.is_empty() || arguments.parts.contains(&part);
    if is_selected(Part::Sequences) {
        run_sequences(&machines, &arguments)?;
    }
    if is_selected(Part::Solver) && run_solver(&machines)? > 0 && arguments.strict {
        bail!("budgets were missed");
    }
    Ok(())
}

fn run_sequences(machines: &[Machine], arguments: &Arguments) -> Result<()> {
    let sequences = arguments.sequences;
    let mut outcomes = Vec::new();
    for machine in machines {
        // Shows the progress: a machine takes a while.
        writeln!(io::stdout(), "{}: {}", machine.name, machine.description)?;
        outcomes.push((machine.name, sequences::simulate(machine, sequences)));
    }
    let tables = page::tables(sequences, &outcomes);
    writeln!(io::stdout(), "\n{tables}")?;
    if arguments.write {
        writeln!(io::stdout(), "written into {}\n", page::write(&tables)?.display())?;
    }
    Ok(())
}

/// Runs the benchmark of the solver. Returns the number of missed budgets.
fn run_solver(machines: &[Machine]) -> Result<usize> {
    let mut report = Report::begin()?;
    report.show(&solver::measure(machines)?)?;
    Ok(report.end()?)
}
