//! `windlass node`: the agent.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use tokio::signal::unix::{SignalKind, signal};
use windlass_node::{Agent, Config, config::Strategy};

use super::{clock, config, directory};
use crate::{
    cli::{DeviceListArg, NodeArgs},
    exit::Logged,
    logging::{self, LogFormat},
};

pub(super) async fn run(args: NodeArgs) -> Result<()> {
    let format = args.log_format;
    logging::to_stderr(format, args.log.clone());
    serve(args).await.map_err(|error| last_words(format, error))
}

/// Whoever collects JSON is told of the end in JSON; a person reads it as that of any command.
fn last_words(format: LogFormat, error: anyhow::Error) -> anyhow::Error {
    match format {
        LogFormat::Json if tracing::event_enabled!(tracing::Level::ERROR) => {
            tracing::error!(error = format!("{error:#}"), "windlass node failed");
            error.context(Logged)
        }
        LogFormat::Json | LogFormat::Text => error,
    }
}

async fn serve(args: NodeArgs) -> Result<()> {
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
    let mut strategies = |only| config.policy.delivery.strategies = BTreeSet::from([only]);
    match args.device_list {
        Some(DeviceListArg::Cdi) => strategies(Strategy::CdiCri),
        Some(DeviceListArg::Envvar) => strategies(Strategy::Envvar),
        None => {}
    }
    // The agent makes these two where they are missing.
    for (what, path, named) in [
        ("kubelet's folder", &config.kubelet_dir, "--kubelet-dir or kubeletDir"),
        ("folder of CDI documents", &config.cdi_dir, "--cdi-dir or cdiDir"),
    ] {
        if path.exists() {
            directory(what, path, named)?;
        }
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
