//! `windlass node`: the agent of a node.

mod read;

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context as _, Result, anyhow};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
    task::spawn_blocking,
};
use windlass_cluster::Client;
use windlass_config::{Config, Diagnostic, LabelValue};
use windlass_migrate::LoadedConfig;
use windlass_node::{Agent, Reservation, StandbyMode, reload::ReloadSource};

use self::read::read;
use super::{check_host_root, clock, require_directory, require_host_paths};
use crate::{
    cli::NodeArgs,
    exit::{AlreadyLogged, UsageError},
    logging::{self, LogFormat},
    stop::{StopSignals, die_with_parent},
};

pub(crate) async fn run(args: NodeArgs) -> Result<()> {
    let format = args.log_format;
    logging::to_stderr(format, args.log.clone());
    args.ends_with.map_or(Ok(()), die_with_parent)?;
    Box::pin(serve(args)).await.map_err(|error| log_final_error(format, error))
}

/// Logs the final error as JSON in JSON mode; in text mode it is printed as for other commands.
fn log_final_error(format: LogFormat, error: anyhow::Error) -> anyhow::Error {
    match format {
        LogFormat::Json if tracing::event_enabled!(tracing::Level::ERROR) => {
            tracing::error!(error = format!("{error:#}"), "windlass node failed");
            error.context(AlreadyLogged)
        }
        LogFormat::Json | LogFormat::Text => error,
    }
}

async fn serve(args: NodeArgs) -> Result<()> {
    let loaded =
        read(&args, &LabelValue::Unknown).map_err(|error| UsageError(with_flag(&args, error)))?;
    log_warnings(&loaded);
    let config = loaded.config;
    check(&config)?;
    let mut shutdown = Box::pin(shutdown_signal()?);
    let reservation = tokio::select! {
        result = reserve(&args, &config) => result?,
        () = &mut shutdown => return Ok(()),
    };
    let file = args.config_dir.clone().or_else(|| args.host.config.clone());
    let file = file.or_else(|| args.nvidia_plugin.file());
    let (reload_sender, reload_source) = reload_source(args);
    let hangup = signal(SignalKind::hangup()).context("cannot wait for SIGHUP")?;
    let agent = tokio::select! {
        agent_start = start(config.clone(), reservation, reload_source) => agent_start?,
        () = &mut shutdown => return Ok(()),
    };
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        config = file.as_ref().map_or("defaults".to_owned(), |file| file.display().to_string()),
        kubelet = %config.places.kubelet_dir.display(),
        host = %config.places.host_root.display(),
        "windlass node started"
    );
    tokio::select! {
        outcome = agent.run(shutdown) => outcome?,
        () = count_sighups(hangup, reload_sender) => {}
    }
    tracing::info!("stopped");
    Ok(())
}

/// Waits for a kubelet. With `--take-over` it then waits until another agent ends; without, up to two seconds for a
/// killed agent.
async fn reserve(args: &NodeArgs, config: &Config) -> Result<Reservation> {
    let mode = if args.take_over { StandbyMode::On } else { StandbyMode::Off };
    Reservation::wait(config, mode).await.context("cannot start")
}

/// Starts the agent on a blocking thread: a hanging disk must not block the shutdown.
async fn start(
    config: Config,
    reservation: Reservation,
    reload_source: ReloadSource,
) -> Result<Agent> {
    let start_agent =
        move || Agent::start_with_reload(&config, reservation, reload_source, clock());
    let agent = spawn_blocking(start_agent).await.context("the start panicked")?;
    agent.context("cannot start")
}

/// Adds the flag of the configuration to its error.
fn with_flag(args: &NodeArgs, error: windlass_config::ConfigError) -> anyhow::Error {
    let flag = if args.config_dir.is_some() { "--config-dir" } else { "--config" };
    anyhow::Error::new(error).context(flag)
}

fn log_warnings(loaded: &LoadedConfig) {
    for Diagnostic { line, text } in &loaded.warnings {
        tracing::warn!(line, "configuration: {text}");
    }
}

/// Builds the input of reloads, which use the same files, variables and flags.
fn reload_source(args: NodeArgs) -> (watch::Sender<u64>, ReloadSource) {
    let (sender, requests) = watch::channel(0);
    let folder = watched_folder(&args);
    let label = args.config_dir.is_some().then(|| args.config_label.clone());
    let load = Arc::new(move |label: &LabelValue| {
        let loaded = read(&args, label)?;
        Ok((loaded.config, loaded.warnings))
    });
    (sender, ReloadSource { load, folder, requests, label })
}

/// Folder to watch for a changed configuration.
fn watched_folder(args: &NodeArgs) -> Option<PathBuf> {
    let file = args.host.config.clone().or_else(|| args.nvidia_plugin.file());
    let parent = file.map(|file| match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => ".".into(),
    });
    args.config_dir.clone().or(parent)
}

/// Counts SIGHUPs. Each requests a reload, as with NVIDIA's config-manager.
async fn count_sighups(mut hangup: Signal, reload_sender: watch::Sender<u64>) {
    while hangup.recv().await.is_some() {
        tracing::info!(signal = "SIGHUP", "reloading the configuration");
        reload_sender.send_modify(|count| *count += 1);
    }
}

fn check(config: &Config) -> Result<()> {
    check_host_root(config)?;
    require_host_paths(config)?;
    if config.cluster.node_name.is_some() {
        // An invalid node name is a mistake even if no feature uses it.
        Client::new(&config.cluster).map_err(|error| UsageError(error.into()))?;
    }
    if config.places.host().recorded().is_some() {
        let root = config.places.host_root.display();
        let problem = anyhow!("the host root {root} is a recording: pods cannot use its devices");
        return Err(UsageError(problem).into());
    }
    // The agent creates or awaits missing folders.
    for (description, path, setting) in [
        ("kubelet's folder", &config.places.kubelet_dir, "--kubelet-dir or kubeletDir"),
        ("folder of CDI documents", &config.places.cdi_dir, "--cdi-dir or cdiDir"),
        ("state folder", &config.places.state_dir, "--state-dir or stateDir"),
    ] {
        if !is_missing(path) {
            require_directory(description, path, setting)?;
        }
    }
    Ok(())
}

/// True if the path does not exist. A file in place of a parent folder is another error.
fn is_missing(path: &Path) -> bool {
    fs::metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Returns a future that ends on a termination signal.
fn shutdown_signal() -> Result<impl Future<Output = ()>> {
    let mut signals = StopSignals::listen()?;
    Ok(async move {
        let signal = signals.recv().await;
        tracing::info!(signal, "stopping");
    })
}
