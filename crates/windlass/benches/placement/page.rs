//! Tables of the results of sequences, and their place in the documentation.

use std::{fmt::Write as _, fs, path::PathBuf};

use anyhow::{Context as _, Result};

use crate::{
    sequences::{Figure, JobScore, Outcome},
    workload::{ARRIVALS, SIZES},
};

/// Markers around the tables in the page.
const BEGIN: &str = "<!-- sequences -->\n";
const END: &str = "<!-- /sequences -->";

/// Columns of each strategy.
const FIGURES: [(&str, Figure); 4] = [
    ("Value of a job's connections, relative to an empty machine", |score| score.connections),
    ("Value of a job's worst connection, relative to an empty machine", |score| score.worst),
    ("Jobs whose set is as good as on an empty machine", |score| score.optimal),
    ("PCIe proximity of a job's devices, relative to an empty machine", |score| {
        score.pcie_proximity
    }),
];

/// One table for each figure.
pub(crate) fn tables(sequences: usize, outcomes: &[(&str, Outcome)]) -> String {
    let sizes = SIZES.map(|(size, weight)| format!("{size} in {weight}0 %")).join(", ");
    let mut text = format!(
        "{sequences} sequences of {ARRIVALS} jobs on each machine. Devices per job: {sizes} of the jobs.\n\n"
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
    let percent = |score: &JobScore| format!("{:.1} %", 100.0 * figure(score));
    let Outcome { aligned, best_effort, first_fit, random, .. } = outcome;
    let best_effort = best_effort.as_ref().map_or_else(|| "-".to_owned(), percent);
    [percent(aligned), best_effort, percent(first_fit), percent(random)]
}

/// Puts the tables into the page about placement.
pub(crate) fn write(tables: &str) -> Result<PathBuf> {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/placement.md"));
    let shown_path = || path.display().to_string();
    let page =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", shown_path()))?;
    let markers = page.split_once(BEGIN).zip(page.split_once(END));
    let ((before, _), (_, after)) =
        markers.with_context(|| format!("{} has no {}", shown_path(), BEGIN.trim_end()))?;
    fs::write(&path, format!("{before}{BEGIN}\n{tables}{END}{after}"))
        .with_context(|| format!("cannot write {}", shown_path()))?;
    Ok(path)
}
