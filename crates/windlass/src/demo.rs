//! `windlass demo`: a simulated machine, the real agent and an embedded kubelet tell the whole story.
//!
//! Every step is checked: a step that does not happen ends the demo with an error.

mod arrivals;
mod boards;
mod claims;
mod event;
mod fault;
mod playable;
mod pods;
mod runtime;
mod scene;
mod script;
mod soak;
mod stage;
mod tell;

use anyhow::{Context as _, Result};
use tokio::time::Instant;

use crate::{
    cli::{DemoArgs, DemoOutputArg},
    exit::{Interrupted, Misuse},
    screen::Paint,
    stop::Stop,
};
use claims::Surroundings;
use event::Event;
use scene::Scene;
use script::Script;
use soak::{Soak, Ways};
use stage::Stage;
use tell::Teller;

/// Plays the demo.
pub(crate) async fn run(args: DemoArgs) -> Result<()> {
    let teller = match args.output {
        DemoOutputArg::Text => Teller::Text(Paint::for_stdout()),
        DemoOutputArg::Json => Teller::Json,
    };
    // Before anything is started that has to be ended.
    let mut stop = Stop::listen()?;
    if let Some(lasts) = args.soak {
        let ways = if args.dra { Ways::Both } else { Ways::DevicePlugin };
        let soak = Soak { machine: args.machine, lasts, seed: args.seed, ways };
        return Box::pin(soak::run(soak, (teller, stop))).await;
    }
    let scene = Scene::of(&args).map_err(Misuse)?;
    let begun = Instant::now();
    let (machine, description) = (scene.profile.name.clone(), scene.profile.description.clone());
    let mut cluster = args.dra.then(|| Surroundings::of(&scene)).transpose()?;
    let stage = Stage::set(scene, cluster.as_ref())?;
    if let Some(cluster) = &mut cluster {
        cluster.attend(&stage);
    }
    teller.tell(&Event::Started {
        machine,
        description,
        simulated: true,
        dir: stage.dir().to_owned(),
    })?;
    let story = async {
        match &cluster {
            Some(cluster) => cluster.play(&stage, teller, begun).await,
            None => Script::new(&stage, teller, begun).play().await,
        }
    };
    let outcome = tokio::select! {
        outcome = story => outcome,
        () = stage.agent_failed() => Err(anyhow::anyhow!("the agent ended")),
        signal = stop.asked() => Err(Interrupted(signal).into()),
    };
    let outcome = match outcome {
        Ok(()) if args.keep => keep(&stage, (teller, stop)).await,
        Ok(()) => Ok(()),
        Err(error) if error.is::<Misuse>() || error.is::<Interrupted>() => Err(error),
        Err(error) => Err(error).context(stage.agent_log_end()),
    };
    stage.clear().await;
    outcome
}

async fn keep(stage: &Stage, (teller, mut stop): (Teller, Stop)) -> Result<()> {
    teller.tell(&stage.kept())?;
    stop.asked().await;
    Ok(())
}
