//! `windlass demo`: a simulated machine, the real agent and an embedded kubelet tell the whole story.
//!
//! Every step is checked: a step that does not happen ends the demo with an error.

mod event;
mod pods;
mod runtime;
mod script;
mod stage;
mod tell;

use anyhow::{Context as _, Result, anyhow};
use tokio::{signal::ctrl_c, time::Instant};
use windlass_machine::Profile;

use crate::{
    cli::{DemoArgs, DemoOutputArg},
    exit::Misuse,
    screen::Paint,
};
use event::Event;
use script::Script;
use stage::Stage;
use tell::Teller;

/// Plays the demo.
pub(crate) async fn run(args: DemoArgs) -> Result<()> {
    let profile = Profile::load(&args.machine).map_err(|error| Misuse(error.into()))?;
    if profile.gpus.is_empty() {
        let message = format!(
            "the demo shows NVIDIA GPUs, and machine {} has none; look at it with `windlass machine \
             create`",
            profile.name
        );
        return Err(Misuse(anyhow!(message)).into());
    }
    let teller = match args.output {
        DemoOutputArg::Text => Teller::Text(Paint::for_stdout()),
        DemoOutputArg::Json => Teller::Json,
    };
    let begun = Instant::now();
    let stage = Stage::set(&profile)?;
    teller.tell(&Event::Started {
        machine: profile.name.clone(),
        description: profile.description.clone(),
        simulated: true,
        dir: stage.dir().to_owned(),
    })?;
    let mut script = Script::new(&stage, teller, begun);
    let outcome = tokio::select! {
        outcome = script.play() => outcome,
        () = stage.agent_failed() => Err(anyhow::anyhow!("the agent ended")),
        _ = ctrl_c() => Err(anyhow::anyhow!("interrupted")),
    };
    let outcome = match outcome {
        Ok(()) if args.keep => keep(&stage, teller).await,
        Ok(()) => Ok(()),
        Err(error) => Err(error).context(stage.agent_log_end()),
    };
    stage.clear().await;
    outcome
}

async fn keep(stage: &Stage, teller: Teller) -> Result<()> {
    teller.tell(&stage.kept())?;
    ctrl_c().await.context("cannot wait for Ctrl-C")
}
