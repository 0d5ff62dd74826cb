//! What is told of a soak: how far it is, what it found, the tables at its end.

use std::{collections::VecDeque, fmt, path::PathBuf, time::Duration};

use serde::Serialize;

use super::{agent::Mounts, schedule::Ways, tally::Tally};
use crate::{
    demo::tell::{Tell, Words},
    screen::{Tone, count},
};

/// One thing that is told.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(super) enum Told {
    /// It begins.
    SoakStarted {
        machine: String,
        simulated: bool,
        seed: u64,
        ways: Ways,
        mounts: Mounts,
        lasts_s: u64,
        dir: PathBuf,
    },
    /// It goes on.
    Progress { elapsed_s: u64, steps: usize, admitted: usize, faults: usize },
    /// Something was not as it must be.
    Broken {
        why: String,
        seed: u64,
        last_steps: VecDeque<String>,
        dir: PathBuf,
        agent: String,
        tally: Tally,
    },
    /// It is over, and all was well.
    SoakFinished { end: End, seed: u64, elapsed_s: u64, tally: Tally },
}

/// What ended a soak in which all was well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum End {
    /// Its time was over.
    InTime,
    /// Somebody, with Ctrl-C or SIGTERM: what was broken then was not seen to recover.
    Early,
}

// === impl Told ===

impl Told {
    pub(super) fn progress(elapsed: Duration, tally: &Tally) -> Self {
        Self::Progress {
            elapsed_s: elapsed.as_secs(),
            steps: tally.steps,
            admitted: tally.admitted,
            faults: tally.struck_in_all(),
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InTime => "",
            Self::Early => "Ended early. ",
        })
    }
}

impl Tell for Told {
    fn lines(&self, words: Words) -> Vec<String> {
        match self {
            Self::SoakStarted { machine, seed, ways, mounts, lasts_s, dir, simulated: _ } => vec![
                words.strong(format!("Windlass soak on {machine}{ways}: {lasts_s} s, seed {seed}")),
                words.tone(
                    Tone::Notable,
                    "The machine is SIMULATED; the agent is a process of its own.",
                ),
                words.quiet(format!("it sees {mounts}")),
                words.quiet(format!("in {}", dir.display())),
            ],
            Self::Progress { elapsed_s, steps, admitted, faults } => {
                let (steps, faults) = (count(*steps, "step"), count(*faults, "fault"));
                let pods = count(*admitted, "pod");
                vec![words.quiet(format!("  {elapsed_s:>5} s  {steps}, {pods} admitted, {faults}"))]
            }
            Self::Broken { why, seed, last_steps, dir, agent, tally } => {
                let mut lines = words.heading(&format!("After {}:", count(tally.steps, "step")));
                lines.push(format!("  {} {why}", words.tone(Tone::Bad, "!!")));
                lines.extend(words.heading(&format!("The last steps of seed {seed}")));
                lines.extend(last_steps.iter().map(|step| format!("  {step}")));
                lines.extend(words.heading("The agent's last words"));
                lines.extend(agent.lines().map(|line| format!("  {line}")));
                lines.push(words.quiet(format!("  all of them are in {}", dir.display())));
                lines
            }
            Self::SoakFinished { end, seed, elapsed_s, tally } => {
                let mut lines = Vec::new();
                for table in tally.tables() {
                    lines.push(String::new());
                    lines.extend(table.lines("  "));
                }
                let steps = count(tally.steps, "step");
                let faults = count(tally.struck_in_all(), "fault");
                let restarts = count(tally.agent_restarts, "restart");
                let what = format!(
                    "{end}Every invariant held over {steps} with {faults} and {restarts} of the agent, in \
                     {elapsed_s} s, seed {seed}."
                );
                lines.extend(words.heading(&what));
                lines
            }
        }
    }
}
