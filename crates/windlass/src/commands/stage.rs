//! `windlass stage`: one stage of a pipeline, whose work the command line selects.

mod call;
mod darwin3;
mod exec;
mod metrics;
mod pace;
mod picture;

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use bytes::Bytes;
use prometheus_client::registry::Registry;
use rustix::system::uname;
use tokio_util::sync::CancellationToken;
use windlass_stage::{BoundStage, Builder, Stage, StageMetrics};

use crate::{
    cli::{LimitArgs, StageArgs, WorkArgs},
    exit::UsageError,
    logging,
    screen::print_line,
    stop::{StopSignals, die_with_parent},
};

pub(crate) async fn run(args: StageArgs) -> Result<()> {
    check(&args).map_err(UsageError)?;
    if let Some(parent) = args.ends_with {
        die_with_parent(parent)?;
    }
    let (metrics, mut registry) = (StageMetrics::new(), Registry::default());
    metrics.register(&mut registry);
    let builder = builder(&args).map_err(UsageError)?.metrics(metrics);
    logging::to_stderr(args.log_format, args.log.clone());
    let (mut signals, shutdown) = (StopSignals::listen()?, CancellationToken::new());
    let bound = builder.bind().await?;
    let metrics_server = match args.metrics {
        Some(address) => Some(metrics::MetricsServer::bind(address).await?),
        None => None,
    };
    print_line(banner(&args, &bound))?;
    let mut serving = Box::pin(bound.serve(shutdown.clone()));
    // This future never ends.
    let serving_metrics = async {
        match metrics_server {
            Some(metrics_server) => metrics_server.serve(&registry).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        result = &mut serving => return Ok(result?),
        () = serving_metrics => {}
        signal = signals.recv() => tracing::info!(signal, "stopping, the stage drains"),
    }
    shutdown.cancel();
    Ok(serving.await?)
}

fn check(args: &StageArgs) -> Result<()> {
    let mut seen = BTreeSet::new();
    let is_unique = args.next.iter().all(|(name, _)| seen.insert(name));
    ensure!(is_unique, "--next: a stage is named twice");
    let mut seen = BTreeSet::new();
    let is_unique = args.from.iter().all(|name| seen.insert(name));
    ensure!(is_unique, "--from: a stage is named twice");
    let is_timed = args.work.sleep.is_some() || args.work.compute.is_some();
    let needs_timed = args.work.variation.is_some() || args.work.output.is_some();
    ensure!(is_timed || !needs_timed, "--variation and --output require --sleep or --compute");
    Ok(())
}

fn builder(args: &StageArgs) -> Result<Builder> {
    let replica = args.replica.clone();
    let replica = replica.unwrap_or_else(|| uname().nodename().to_string_lossy().into_owned());
    let limits = args.limits;
    let mut builder = Stage::builder(&args.name).listen(args.listen.clone()).replica(&replica);
    for (name, addresses) in &args.next {
        builder = builder.next(name, addresses.clone());
    }
    for name in &args.from {
        builder = builder.previous(name);
    }
    let builder = builder.limits(|settings| {
        settings.workers = limits.workers;
        settings.batch = limits.batch;
        settings.batch_wait = limits.batch_wait;
        settings.window = limits.window;
        settings.max_payload = limits.max_payload;
        settings.work_timeout = limits.work_timeout;
        settings.drain_timeout = limits.drain_timeout;
        settings.join_timeout = limits.join_timeout;
    });
    with_work(builder, args.work.clone(), limits)
}

/// Adds the work that the arguments select. Without work, the stage forwards payloads.
fn with_work(builder: Builder, args: WorkArgs, limits: LimitArgs) -> Result<Builder> {
    if let Some(timed_work) = pace::TimedWork::of(&args) {
        return Ok(builder.batch(limits.batch, move |payloads| timed_work.clone().work(payloads)));
    }
    if let Some(pictures) = picture::Pictures::of(&args, limits.max_payload) {
        return Ok(builder.blocking(move |payload| pictures.work(payload)));
    }
    if let Some(boards) = darwin3::Darwin3::of(&args.darwin3, limits)? {
        return Ok(builder
            .workers(boards.board_count())
            .blocking(move |payload| boards.run(payload)));
    }
    if let Some(command) = args.exec {
        return Ok(builder.work(move |payload: Bytes| exec::run(command.clone(), payload)));
    }
    if let Some(call) = args.call {
        let client = call::Client::new(call);
        return Ok(builder.work(move |payload: Bytes| client.clone().call(payload)));
    }
    Ok(builder)
}

/// Line on stdout that announces the address of the stage.
fn banner(args: &StageArgs, bound: &BoundStage) -> String {
    let next: Vec<_> =
        args.next.iter().map(|(name, address)| format!("{name} at {address}")).collect();
    let next = if next.is_empty() { "none".to_owned() } else { next.join(", ") };
    format!("stage {} listens on {}; next: {next}", args.name, bound.address())
}
