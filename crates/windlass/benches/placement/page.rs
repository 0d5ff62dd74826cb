//! The outcome of sequences as tables, and their place in the documentation.

use std::{fmt::Write as _, fs, path::PathBuf};

use anyhow::{Context as _, Result};

use crate::{
    sequences::{Figure, JobScore, Outcome},
    workload::{ARRIVALS, SIZES},
};

/// The tables stand between these in the page.
const BEGIN: &str = "<!-- sequences -->\n";
const END: &str = "<!-- /sequences -->";

/// Columns of each strategy.
const FIGURES: [(&str, Figure); 4] = [
    ("Connections of a job, of what it has on an empty machine", |got| got.connections),
    ("Worst connection of a job, of what it has on an empty machine", |got| got.worst),
    ("Jobs whose set is as good as on an empty machine", |got| got.optimal),
    ("How near each other a job's devices sit on PCIe, of an empty machine", |got| {
        got.pcie_proximity
    }),
];

/// One table for each figure.
pub(crate) fn tables(sequences: usize, outcomes: &[(&str, Outcome)]) -> String {
    let sizes = SIZES.map(|(size, weight)| format!("{weight} of {size}")).join(", ");
    let mut text = format!(
        "{sequences} sequences of {ARRIVALS} jobs on each machine; of ten jobs that ask, so many ask for \
         so many devices: {sizes}.\n\n"
    );
    for (title, figure) in FIGURES {
        let _ = writeln!(text, "{title}:\n");
        text.push_str("| machine | aligned | best-effort | first-fit | random | in use |\n");
        text.push_str("| --- | ---: | ---: | ---: | ---: | ---: |\n");
        for (machine, outcome) in outcomes {
            let cells = cells(outcome, figure).join(" | ");
            let load = 100.0 * outcome.load;
            let _ = writeln!(text, "| {machine} | {cells} | {load:.0} % |");
        }
        text.push('\n');
    }
    text
}

fn cells(outcome: &Outcome, figure: Figure) -> [String; 4] {
    let of = |got: &JobScore| format!("{:.1} %", 100.0 * figure(got));
    let Outcome { aligned, best_effort, first_fit, random, .. } = outcome;
    let best_effort = best_effort.as_ref().map_or_else(|| "-".to_owned(), of);
    [of(aligned), best_effort, of(first_fit), of(random)]
}

/// Puts the tables into the page about placement.
pub(crate) fn write(tables: &str) -> Result<PathBuf> {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/placement.md"));
    let at = || path.display().to_string();
    let page = fs::read_to_string(&path).with_context(|| format!("cannot read {}", at()))?;
    let parts = page.split_once(BEGIN).zip(page.split_once(END));
    let ((before, _), (_, after)) =
        parts.with_context(|| format!("{} has no {}", at(), BEGIN.trim_end()))?;
    fs::write(&path, format!("{before}{BEGIN}\n{tables}{END}{after}"))
        .with_context(|| format!("cannot write {}", at()))?;
    Ok(path)
}
