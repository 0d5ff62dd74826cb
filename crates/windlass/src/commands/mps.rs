//! `windlass mps stop`: stop MPS daemons that an agent left running.

use anyhow::{Result, bail};
use windlass_lifecycle::mps;

use super::host_config;
use crate::{
    cli::{MpsArgs, MpsCommand},
    screen::line,
};

pub(crate) async fn run(args: MpsArgs) -> Result<()> {
    let MpsCommand::Stop(host) = args.command;
    let config = host_config(host)?;
    let stopped = mps::stop_all(&config.places, &config.mps).await;
    if stopped.is_empty() {
        return Ok(line("no MPS daemon of Windlass is running")?);
    }
    let mut failed = Vec::new();
    for (device, outcome) in stopped {
        match outcome {
            Ok(()) => line(format!("{device}  stopped"))?,
            Err(why) => failed.push(format!("{device}: {why}")),
        }
    }
    if !failed.is_empty() {
        bail!("cannot stop the MPS daemons of {}", failed.join(", "));
    }
    Ok(())
}
