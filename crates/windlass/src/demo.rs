//! `windlass demo`: a simulated machine, the real agent and an embedded kubelet.
//!
//! Every step is checked; a step that fails ends the demo with an error.

mod arrivals;
mod boards;
mod claims;
mod cluster;
mod defaults;
mod edge;
mod event;
mod fault;
mod pager;
mod pods;
mod report;
mod runtime;
mod script;
mod setup;
mod soak;
mod testbed;

use anyhow::{Context as _, Result};
use tokio::time::Instant;

use crate::{
    cli::{DemoArgs, DemoOutputArg},
    exit::{Interrupted, UsageError},
    screen::Paint,
    stop::StopSignals,
};
use claims::ClusterFixture;
use cluster::Fleet;
use event::Event;
use pager::Pager;
use report::Reporter;
use script::Script;
use setup::Setup;
use soak::{AllocationApis, SoakConfig};
use testbed::Testbed;

pub(crate) async fn run(args: DemoArgs) -> Result<()> {
    if args.step {
        let (pager, pager_thread) = Pager::start()?;
        let mut signals = StopSignals::listen()?;
        let outcome = Box::pin(run_scenario(args, Reporter::Paged(pager))).await;
        if outcome.as_ref().is_err_and(anyhow::Error::is::<Interrupted>) {
            return outcome;
        }
        return tokio::select! {
            result = pager_thread.join() => result.and(outcome),
            signal = signals.recv() => Err(Interrupted(signal).into()),
        };
    }
    let reporter = match args.output {
        DemoOutputArg::Text => Reporter::Text(Paint::for_stdout()),
        DemoOutputArg::Json => Reporter::Json,
    };
    Box::pin(run_scenario(args, reporter)).await
}

/// Runs the scenario that the arguments select: the soak, the edge demo, or the demo on one machine.
async fn run_scenario(args: DemoArgs, reporter: Reporter) -> Result<()> {
    // Handle signals before starting anything that needs cleanup.
    let signals = StopSignals::listen()?;
    if let Some(duration) = args.soak {
        let apis =
            if args.variant.dra { AllocationApis::Both } else { AllocationApis::DevicePlugin };
        let config = SoakConfig { machine: args.machine, duration, seed: args.seed, apis };
        return Box::pin(soak::run(config, reporter, signals)).await;
    }
    if args.variant.edge {
        return Box::pin(edge::run(reporter, signals)).await;
    }
    Box::pin(run_on_machine(args, reporter, signals)).await
}

/// Runs the demo on one machine: with the device plugin, with claims (`--dra`) or in a cluster (`--cluster`).
async fn run_on_machine(
    args: DemoArgs,
    reporter: Reporter,
    mut signals: StopSignals,
) -> Result<()> {
    let setup = Setup::from_args(&args).map_err(UsageError)?;
    let start = Instant::now();
    let (machine, description) = (setup.profile.name.clone(), setup.profile.description.clone());
    let driver = setup.policy.dra.driver.clone();
    let mut claims = args.variant.dra.then(|| ClusterFixture::start(driver)).transpose()?;
    let fleet = args.variant.cluster.then(Fleet::start).transpose()?;
    let server = claims.as_ref().map(ClusterFixture::server).or(fleet.as_ref().map(Fleet::server));
    let testbed = Testbed::start(setup, server)?;
    if let Some(claims) = &mut claims {
        claims.delete_slices_at_kubelet_start(&testbed.kubelet);
    }
    reporter.report(&Event::Started {
        machine,
        description,
        simulated: true,
        dir: testbed.dir().to_owned(),
    })?;
    let scenario = async {
        match (&claims, &fleet) {
            (Some(cluster), _) => claims::run(&testbed, cluster, reporter.clone(), start).await,
            (None, Some(fleet)) => cluster::run(&testbed, fleet, reporter.clone(), start).await,
            (None, None) => Script::new(&testbed, reporter.clone(), start).run_steps().await,
        }
    };
    let outcome = tokio::select! {
        outcome = scenario => outcome,
        () = testbed.ended.cancelled() => Err(anyhow::anyhow!("the agent ended")),
        signal = signals.recv() => Err(Interrupted(signal).into()),
    };
    let outcome = match outcome {
        Ok(()) if args.keep => wait_for_stop(&testbed, reporter, signals).await,
        Ok(()) => Ok(()),
        Err(error) if error.is::<UsageError>() || error.is::<Interrupted>() => Err(error),
        Err(error) => Err(error).context(testbed.agent_log_tail()),
    };
    testbed.shutdown().await;
    outcome
}

/// Keeps everything running until a signal.
async fn wait_for_stop(
    testbed: &Testbed,
    reporter: Reporter,
    mut signals: StopSignals,
) -> Result<()> {
    reporter.report(&testbed.paths_and_commands())?;
    signals.recv().await;
    Ok(())
}
