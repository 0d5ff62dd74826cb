//! `windlass labels`: node labels for this host.

use anyhow::Result;
use windlass_core::{
    inventory::Inventory,
    labels::{Labels, feature_file},
};
use windlass_node::{agent, labels};

use super::{
    clock, host_config, print_origin_notice, print_origin_notice_to_stderr, print_output,
    require_sources, source_lines,
};
use crate::{
    cli::{LabelsArgs, LabelsOutputArg, OutputArg},
    screen::{Paint, Table, print_line},
};

pub(crate) async fn run(args: LabelsArgs) -> Result<()> {
    let (config, clock) = (host_config(args.host)?, clock());
    let state = agent::scan_host(&config, clock).await;
    let inventory = &state.inventory;
    let host = config.places.host();
    let labels = labels::compute(&host, &config.policy, &state, clock.now());
    if !matches!(args.output, LabelsOutputArg::Table) {
        // Labels in JSON, YAML or lines have no room for a notice.
        print_origin_notice_to_stderr(inventory)?;
    }
    let output = match args.output {
        LabelsOutputArg::Nfd => {
            print_line(feature_file(&labels).trim_end())?;
            return require_sources(inventory);
        }
        LabelsOutputArg::Table => OutputArg::Table,
        LabelsOutputArg::Json => OutputArg::Json,
        LabelsOutputArg::Yaml => OutputArg::Yaml,
    };
    print_output(output, &labels, || table(inventory, &labels))?;
    require_sources(inventory)
}

fn table(inventory: &Inventory, labels: &Labels) -> Result<()> {
    let paint = Paint::for_stdout();
    print_origin_notice(inventory, paint)?;
    source_lines(inventory, paint).into_iter().try_for_each(print_line)?;
    let mut table = Table::new(["LABEL", "VALUE"]);
    for (key, value) in labels {
        table.add_row([key.clone(), value.clone()]);
    }
    if !labels.is_empty() {
        print_line("")?;
        table.print()?;
    }
    Ok(())
}
