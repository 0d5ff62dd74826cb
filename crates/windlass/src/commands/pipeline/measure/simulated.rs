//! Measures layouts on simulated boards: real stages as processes, links with the boards' rates and delays.

use anyhow::{Context as _, Result};
use tempfile::tempdir;
use windlass_pipeline::{Layout, Pipeline, Plan, Prediction};

use super::{MeasureReport, MeasuredLayout, PredictedBeside, load::Entrance, measure, size};
use crate::{
    cli::MeasureArgs, commands::pipeline::fleet, edge::Boards, exit::Interrupted, stop::Stop,
};

/// Measures the layouts one after another, until Ctrl-C.
pub(super) async fn layouts(pipeline: &Pipeline, args: &MeasureArgs) -> Result<MeasureReport> {
    let mut stop = Stop::listen()?;
    tokio::select! {
        report = Box::pin(each_layout(pipeline, args)) => report,
        // The stages end with this program.
        signal = stop.requested() => Err(Interrupted(signal).into()),
    }
}

async fn each_layout(pipeline: &Pipeline, args: &MeasureArgs) -> Result<MeasureReport> {
    let fleet = fleet::fleet(&args.fleet).await?;
    let layouts = args.layout.map_or_else(|| Layout::ALL.to_vec(), |layout| vec![layout]);
    let folder = tempdir().context("cannot make a temporary folder")?;
    let mut measured = Vec::new();
    for layout in layouts {
        let title = format!("layout {}", layout.name());
        let plan = Plan::of(pipeline, &fleet, layout).context(title.clone())?;
        let boards = Boards::start(pipeline, &fleet, &plan.placement, folder.path()).await?;
        let figures = measure(pipeline, &entrance(pipeline, &boards)?, args.lasts, &title).await;
        boards.stop().await;
        let figures = figures?;
        let rate = Some(figures.at_items_per_second);
        let prediction = Prediction::at(pipeline, &fleet, &plan.placement, rate);
        measured.push(MeasuredLayout {
            layout: Some(layout.name()),
            measured: figures,
            predicted: Some(PredictedBeside::of(&prediction)),
        });
    }
    let take = MeasuredLayout::best(pipeline.goal, &measured);
    Ok(MeasureReport { pipeline: pipeline.name.clone(), simulated: true, layouts: measured, take })
}

/// The way into a pipeline on simulated boards.
pub(crate) fn entrance(pipeline: &Pipeline, boards: &Boards<'_>) -> Result<Entrance> {
    let addresses = |stage| boards.addresses(stage).parse().context("addresses of this machine");
    Ok(Entrance {
        first: pipeline.stages[0].name.clone(),
        addresses: addresses(0)?,
        ends: pipeline.ends().map(addresses).collect::<Result<_>>()?,
        input: size(pipeline),
    })
}
