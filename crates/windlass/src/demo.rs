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
mod pods;
mod report;
mod runtime;
mod scene;
mod script;
mod soak;
mod stage;
mod steps;

use anyhow::{Context as _, Result};
use tokio::time::Instant;

use crate::{
    cli::{DemoArgs, DemoOutputArg},
    exit::{Interrupted, Misuse},
    screen::Paint,
    stop::Stop,
};
use claims::ClusterFixture;
use cluster::Fleet;
use event::Event;
use report::Reporter;
use scene::Scene;
use script::Script;
use soak::{AllocationApis, Soak};
use stage::Stage;
use steps::Steps;

pub(crate) async fn run(args: DemoArgs) -> Result<()> {
    if args.step {
        let (steps, screen) = Steps::start()?;
        let mut stop = Stop::listen()?;
        let outcome = Box::pin(show(args, Reporter::Steps(steps))).await;
        if outcome.as_ref().is_err_and(anyhow::Error::is::<Interrupted>) {
            return outcome;
        }
        return tokio::select! {
            shown = screen.end() => shown.and(outcome),
            signal = stop.requested() => Err(Interrupted(signal).into()),
        };
    }
    let reporter = match args.output {
        DemoOutputArg::Text => Reporter::Text(Paint::for_stdout()),
        DemoOutputArg::Json => Reporter::Json,
    };
    Box::pin(show(args, reporter)).await
}

/// Shows the story that is asked for.
async fn show(args: DemoArgs, reporter: Reporter) -> Result<()> {
    // Signals are caught before anything starts that has to be cleaned up.
    let stop = Stop::listen()?;
    if let Some(lasts) = args.soak {
        let ways = if args.story.dra { AllocationApis::Both } else { AllocationApis::DevicePlugin };
        let soak = Soak { machine: args.machine, lasts, seed: args.seed, ways };
        return Box::pin(soak::run(soak, reporter, stop)).await;
    }
    if args.story.edge {
        return Box::pin(edge::run(reporter, stop)).await;
    }
    Box::pin(play(args, reporter, stop)).await
}

/// Plays the story of a machine, with claims or with a cluster if it is asked for.
async fn play(args: DemoArgs, reporter: Reporter, mut stop: Stop) -> Result<()> {
    let scene = Scene::of(&args).map_err(Misuse)?;
    let begun = Instant::now();
    let (machine, description) = (scene.profile.name.clone(), scene.profile.description.clone());
    let driver = scene.policy.dra.driver.clone();
    let mut claims = args.story.dra.then(|| ClusterFixture::start(driver)).transpose()?;
    let fleet = args.story.cluster.then(Fleet::start).transpose()?;
    let server = claims.as_ref().map(ClusterFixture::server).or(fleet.as_ref().map(Fleet::server));
    let stage = Stage::start(scene, server)?;
    if let Some(claims) = &mut claims {
        claims.mimic_wipes(&stage.kubelet);
    }
    reporter.tell(&Event::Started {
        machine,
        description,
        simulated: true,
        dir: stage.dir().to_owned(),
    })?;
    let story = async {
        match (&claims, &fleet) {
            (Some(cluster), _) => claims::play(&stage, cluster, reporter.clone(), begun).await,
            (None, Some(fleet)) => cluster::play(&stage, fleet, reporter.clone(), begun).await,
            (None, None) => Script::new(&stage, reporter.clone(), begun).play().await,
        }
    };
    let outcome = tokio::select! {
        outcome = story => outcome,
        () = stage.ended.cancelled() => Err(anyhow::anyhow!("the agent ended")),
        signal = stop.requested() => Err(Interrupted(signal).into()),
    };
    let outcome = match outcome {
        Ok(()) if args.keep => keep(&stage, reporter, stop).await,
        Ok(()) => Ok(()),
        Err(error) if error.is::<Misuse>() || error.is::<Interrupted>() => Err(error),
        Err(error) => Err(error).context(stage.agent_log_end()),
    };
    stage.shutdown().await;
    outcome
}

async fn keep(stage: &Stage, reporter: Reporter, mut stop: Stop) -> Result<()> {
    reporter.tell(&stage.paths_and_commands())?;
    stop.requested().await;
    Ok(())
}
