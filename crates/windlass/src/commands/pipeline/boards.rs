//! `windlass pipeline boards`: list of the board profiles.

use anyhow::Result;
use serde::Serialize;
use windlass_pipeline::{fleet::BoardProfile, quantity::BitRate};

use crate::{cli::BoardsArgs, commands::print_output, screen::Table};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    name: &'static str,
    cpus: u32,
    memory_gib: u32,
    devices: Vec<String>,
    rate: BitRate,
    description: &'static str,
}

pub(super) fn run(args: &BoardsArgs) -> Result<()> {
    let rows = BoardProfile::ALL.map(|board| Row {
        name: board.name,
        cpus: board.cpus,
        memory_gib: board.memory_gib,
        devices: board
            .devices
            .iter()
            .map(|(resource, count)| format!("{count} {resource}"))
            .collect(),
        rate: BitRate(board.rate),
        description: board.description,
    });
    print_output(args.output, &rows, || {
        let mut table = Table::new(["BOARD", "CPUS", "MEMORY", "DEVICES", "LINK", "DESCRIPTION"]);
        for row in &rows {
            let devices =
                if row.devices.is_empty() { "-".to_owned() } else { row.devices.join(", ") };
            let description = row.description.to_owned();
            table.add_row([
                row.name.to_owned(),
                row.cpus.to_string(),
                format!("{} GiB", row.memory_gib),
                devices,
                row.rate.to_string(),
                description,
            ]);
        }
        Ok(table.print()?)
    })
}
