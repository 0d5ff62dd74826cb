//! Output of a soak: progress, violations and the final tables.

use std::{collections::VecDeque, fmt, path::PathBuf, time::Duration};

use serde::Serialize;

use super::{agent::Mounts, schedule::AllocationApis, tally::Tally};
use crate::{
    demo::report::{Render, Renderer},
    screen::{Style, pluralized},
};

#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(super) enum SoakEvent {
    /// The soak has started.
    SoakStarted {
        machine: String,
        simulated: bool,
        seed: u64,
        ways: AllocationApis,
        mounts: Mounts,
        lasts_s: u64,
        dir: PathBuf,
    },
    /// Periodic progress.
    Progress { elapsed_s: u64, steps: usize, admitted: usize, faults: usize },
    /// An invariant was violated.
    #[serde(rename = "broken")]
    Violation {
        why: String,
        seed: u64,
        last_steps: VecDeque<String>,
        dir: PathBuf,
        agent: String,
        tally: Tally,
    },
    /// The soak has ended without a violation.
    SoakFinished { end: SoakEnd, seed: u64, elapsed_s: u64, tally: Tally },
}

/// Reason of an end without a violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum SoakEnd {
    /// The duration has passed.
    InTime,
    /// Ctrl-C or SIGTERM. Recovery from the last faults was not checked.
    Early,
}

// === impl SoakEvent ===

impl SoakEvent {
    pub(super) fn progress(elapsed: Duration, tally: &Tally) -> Self {
        Self::Progress {
            elapsed_s: elapsed.as_secs(),
            steps: tally.steps,
            admitted: tally.admitted,
            faults: tally.fault_count(),
        }
    }
}

impl fmt::Display for SoakEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InTime => "",
            Self::Early => "Ended early. ",
        })
    }
}

impl Render for SoakEvent {
    fn lines(&self, render: Renderer) -> Vec<String> {
        match self {
            Self::SoakStarted { machine, seed, ways, mounts, lasts_s, dir, simulated: _ } => vec![
                render.bold(format!("Windlass soak on {machine}{ways}: {lasts_s} s, seed {seed}")),
                render.styled(
                    Style::Warning,
                    "The machine is SIMULATED; the agent is a process of its own.",
                ),
                render.muted(format!("the agent sees {mounts}")),
                render.muted(format!("in {}", dir.display())),
            ],
            Self::Progress { elapsed_s, steps, admitted, faults } => {
                let (steps, faults) = (pluralized(*steps, "step"), pluralized(*faults, "fault"));
                let pods = pluralized(*admitted, "pod");
                vec![
                    render.muted(format!("  {elapsed_s:>5} s  {steps}, {pods} admitted, {faults}")),
                ]
            }
            Self::Violation { why, seed, last_steps, dir, agent, tally } => {
                let mut lines =
                    render.heading(&format!("After {}:", pluralized(tally.steps, "step")));
                lines.push(format!("  {} {why}", render.styled(Style::Error, "!!")));
                lines.extend(render.heading(&format!("The last steps of seed {seed}")));
                lines.extend(last_steps.iter().map(|step| format!("  {step}")));
                lines.extend(render.heading("Last lines of the agent's log"));
                lines.extend(agent.lines().map(|line| format!("  {line}")));
                lines.push(render.muted(format!("  the whole log is in {}", dir.display())));
                lines
            }
            Self::SoakFinished { end, seed, elapsed_s, tally } => {
                let mut lines = Vec::new();
                for table in tally.tables() {
                    lines.push(String::new());
                    lines.extend(table.lines("  "));
                }
                let steps = pluralized(tally.steps, "step");
                let faults = pluralized(tally.fault_count(), "fault");
                let restarts = pluralized(tally.agent_restarts, "restart");
                let sentence = format!(
                    "{end}Every invariant held over {steps} with {faults} and {restarts} of the agent, in \
                     {elapsed_s} s, seed {seed}."
                );
                lines.extend(render.heading(&sentence));
                lines
            }
        }
    }
}
