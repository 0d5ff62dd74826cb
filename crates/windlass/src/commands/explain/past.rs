//! `windlass explain --past`: allocation history of the agent.

use anyhow::Result;
use jiff::{RoundMode, Timestamp, TimestampRound, Unit};
use serde::Serialize;
use windlass_config::Config;
use windlass_deviceplugin::history::{self, Candidates, RecordedChoice};
use windlass_resources::NodeState;

use super::{report::name, scan_host};
use crate::{
    cli::OutputArg,
    commands::{Origin, print_origin_notice, print_output},
    screen::{Paint, Table, print_line},
};

/// Output in JSON and YAML.
#[derive(Serialize)]
struct HistoryDocument<'a> {
    #[serde(flatten)]
    origin: Origin<'a>,
    /// Newest first.
    choices: &'a [RecordedChoice],
}

pub(super) async fn run(config: &Config, output: OutputArg) -> Result<()> {
    let choices = history::read(&config.places.state_dir)?;
    let node = scan_host(config).await?;
    let origin = Origin::of(&node.inventory);
    print_output(output, &HistoryDocument { origin, choices: &choices }, || {
        show(config, &node, &choices)
    })
}

fn show(config: &Config, node: &NodeState, choices: &[RecordedChoice]) -> Result<()> {
    print_origin_notice(&node.inventory, Paint::for_stdout())?;
    if choices.is_empty() {
        return Ok(print_line(empty_message(config))?);
    }
    Ok(table(node, choices).print()?)
}

/// Message for an empty history.
fn empty_message(config: &Config) -> String {
    format!("no allocation history in {}", config.places.state_dir.display())
}

fn table(node: &NodeState, choices: &[RecordedChoice]) -> Table {
    let mut table = Table::new(["TIME", "RESOURCE", "POLICY", "SIZE", "OF", "CHOSEN", ""]);
    for choice in choices {
        let candidate_count = match &choice.candidates {
            Candidates::Devices { available, .. } => available.len(),
            Candidates::Replicas { pools, .. } => {
                pools.iter().map(|pool| pool.free.iter().count()).sum()
            }
        };
        let exact = if choice.exact { "" } else { "not exact" };
        table.add_row([
            whole_seconds(choice.at),
            choice.resource.to_string(),
            choice.policy.to_string(),
            choice.size.to_string(),
            candidate_count.to_string(),
            chosen(node, &choice.candidates),
            exact.to_owned(),
        ]);
    }
    table
}

/// Names of the chosen devices: `GPU0 GPU1`, or `2 of GPU0, 1 of GPU1` for replicas.
fn chosen(node: &NodeState, candidates: &Candidates) -> String {
    match candidates {
        Candidates::Devices { chosen, .. } => {
            let names: Vec<_> = chosen.iter().map(|id| name(node, id)).collect();
            names.join(" ")
        }
        Candidates::Replicas { pools, .. } => {
            let chosen_pools = pools.iter().filter(|pool| !pool.chosen.is_empty());
            let shares = chosen_pools.map(|pool| {
                format!("{} of {}", pool.chosen.iter().count(), name(node, &pool.device))
            });
            shares.collect::<Vec<_>>().join(", ")
        }
    }
}

/// Text of a time, truncated to whole seconds.
pub(super) fn whole_seconds(at: Timestamp) -> String {
    let floor = TimestampRound::new().smallest(Unit::Second).mode(RoundMode::Floor);
    at.round(floor).map_or_else(|_| at.to_string(), |at| at.to_string())
}
