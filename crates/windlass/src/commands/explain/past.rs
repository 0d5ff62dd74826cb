//! `windlass explain --past`: the choices that the agent remembers.

use anyhow::Result;
use jiff::{RoundMode, Timestamp, TimestampRound, Unit};
use serde::Serialize;
use windlass_config::Config;
use windlass_deviceplugin::history::{self, Among, Remembered};
use windlass_resources::NodeState;

use super::{report::name, survey};
use crate::{
    cli::OutputArg,
    commands::{Origin, answer, simulated},
    screen::{Paint, Table, line},
};

/// The answer for programs.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    origin: Origin<'a>,
    /// The newest first.
    choices: &'a [Remembered],
}

pub(super) async fn run(config: &Config, output: OutputArg) -> Result<()> {
    let choices = history::read(&config.places.state_dir)?;
    let node = survey(config).await?;
    let origin = Origin::of(&node.inventory);
    answer(output, &Document { origin, choices: &choices }, || show(config, &node, &choices))
}

fn show(config: &Config, node: &NodeState, choices: &[Remembered]) -> Result<()> {
    simulated(&node.inventory, Paint::for_stdout())?;
    if choices.is_empty() {
        return Ok(line(nothing(config))?);
    }
    Ok(table(node, choices).lines("").into_iter().try_for_each(line)?)
}

/// What there is to say where nothing is remembered.
fn nothing(config: &Config) -> String {
    format!("no choice is remembered in {}", config.places.state_dir.display())
}

fn table(node: &NodeState, choices: &[Remembered]) -> Table {
    let mut table = Table::new(["TIME", "RESOURCE", "POLICY", "SIZE", "OF", "CHOSEN", ""]);
    for then in choices {
        let of = match &then.among {
            Among::Devices { available, .. } => available.len(),
            Among::Replicas { pools, .. } => {
                pools.iter().map(|pool| pool.free.iter().count()).sum()
            }
        };
        let exact = if then.exact { "" } else { "not exact" };
        table.row([
            second(then.at),
            then.resource.to_string(),
            then.policy.to_string(),
            then.size.to_string(),
            of.to_string(),
            chosen(node, &then.among),
            exact.to_owned(),
        ]);
    }
    table
}

/// `GPU0 GPU1`, and of replicas `2 of GPU0, 1 of GPU1`.
fn chosen(node: &NodeState, among: &Among) -> String {
    match among {
        Among::Devices { chosen, .. } => {
            let names: Vec<_> = chosen.iter().map(|id| name(node, id)).collect();
            names.join(" ")
        }
        Among::Replicas { pools, .. } => {
            let given = pools.iter().filter(|pool| !pool.chosen.is_empty());
            let shares = given.map(|pool| {
                format!("{} of {}", pool.chosen.iter().count(), name(node, &pool.device))
            });
            shares.collect::<Vec<_>>().join(", ")
        }
    }
}

/// The second that it was in.
pub(super) fn second(at: Timestamp) -> String {
    let begun = TimestampRound::new().smallest(Unit::Second).mode(RoundMode::Floor);
    at.round(begun).map_or_else(|_| at.to_string(), |at| at.to_string())
}
