//! `windlass mps stop`: stop MPS daemons that an agent left running.

use anyhow::{Result, bail};
use windlass_lifecycle::mps;

use super::host_config;
use crate::{
    cli::{MpsArgs, MpsCommand},
    screen::print_line,
};

pub(crate) async fn run(args: MpsArgs) -> Result<()> {
    let MpsCommand::Stop(host) = args.command;
    let config = host_config(host)?;
    let outcomes = mps::stop_all(&config.places, &config.mps).await;
    if outcomes.is_empty() {
        return Ok(print_line("no MPS daemon of Windlass is running")?);
    }
    let mut failures = Vec::new();
    for (device, outcome) in outcomes {
        match outcome {
            Ok(()) => print_line(format!("{device}  stopped"))?,
            Err(error) => failures.push(format!("{device}: {error}")),
        }
    }
    if !failures.is_empty() {
        bail!("cannot stop the MPS daemons of {}", failures.join(", "));
    }
    Ok(())
}
