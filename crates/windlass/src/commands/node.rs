//! `windlass node`: the agent.

use anyhow::{Context as _, Result};
use tokio::signal::unix::{SignalKind, signal};
use windlass_node::{Agent, Config, config::DeviceList};

use super::{clock, config};
use crate::{
    cli::{DeviceListArg, NodeArgs},
    logging,
};

pub(super) async fn run(args: NodeArgs) -> Result<()> {
    logging::to_stderr(args.log_format, args.log.clone());
    let config = with_flags(args)?;
    let shutdown = asked_to_stop()?;
    let agent = Agent::start(&config, clock()).context("cannot start")?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        kubelet = %config.kubelet_dir.display(),
        host = %config.host_root.display(),
        "windlass node started"
    );
    agent.run(shutdown).await?;
    tracing::info!("stopped");
    Ok(())
}

fn with_flags(args: NodeArgs) -> Result<Config> {
    let mut config = config(args.host)?;
    let flags = [
        (&mut config.kubelet_dir, args.kubelet_dir),
        (&mut config.cdi_dir, args.cdi_dir),
        (&mut config.host_root_on_node, args.host_root_on_node),
    ];
    for (value, flag) in flags {
        if let Some(flag) = flag {
            *value = flag;
        }
    }
    match args.device_list {
        Some(DeviceListArg::Cdi) => config.device_list = DeviceList::Cdi,
        Some(DeviceListArg::Envvar) => config.device_list = DeviceList::Envvar,
        None => {}
    }
    Ok(config)
}

/// Ends at SIGTERM, which Kubernetes sends, or SIGINT, which Ctrl-C sends.
fn asked_to_stop() -> Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    Ok(async move {
        let name = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        };
        tracing::info!(signal = name, "stopping");
    })
}
