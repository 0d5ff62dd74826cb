//! Steps of the edge demo: each performs an action, checks the result and reports it.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use tempfile::{TempDir, tempdir};
use tokio::time::{Instant, sleep};
use windlass_pipeline::{
    Fleet, Layout, Pipeline, Placement, Plan, Prediction, plan::move_off_node,
};

use super::event::{AccountRow, BoardRow, EdgeEvent, LayoutRow};
use crate::{
    commands::pipeline::report::PlanWriter,
    demo::{report::Reporter, script::elapsed_ms},
    edge::{SimulatedBoards, endpoints, measure_overhead, measure_plan},
    measurement::{
        figures::ItemAccount,
        load::{Load, LoadRun},
    },
    screen::Progress,
};

/// Pipeline, boards and output of the edge demo.
pub(super) struct EdgeScript {
    reporter: Reporter,
    pipeline: Pipeline,
    fleet: Fleet,
    folder: TempDir,
}

/// Examples of the repository.
const PIPELINE: &str = include_str!("../../../../../deploy/examples/pipelines/doorbell.yaml");
const BOARDS: &str = include_str!("../../../../../deploy/examples/pipelines/boards.yaml");

/// Duration of a measurement; each layout has two.
const MEASUREMENT_DURATION: Duration = Duration::from_secs(4);
/// Duration of the load during which a board fails.
const LOAD_DURATION: Duration = Duration::from_secs(6);
const FAILURE_DELAY: Duration = Duration::from_secs(2);
/// Load during the failure, as a fraction of the throughput. The rest lets the pipeline catch up on queued items.
const LOAD: f64 = 0.5;

// === impl EdgeScript ===

impl EdgeScript {
    pub(super) fn new(reporter: Reporter) -> Result<Self> {
        Ok(Self {
            reporter,
            pipeline: Pipeline::parse(Path::new("doorbell.yaml"), PIPELINE)?,
            fleet: Fleet::parse(Path::new("boards.yaml"), BOARDS)?,
            folder: tempdir().context("cannot make a temporary folder")?,
        })
    }

    pub(super) async fn run_steps(mut self) -> Result<()> {
        let start = Instant::now();
        self.reporter.report(&self.boards())?;
        self.calibrate().await.context("step calibration")?;
        let mut rows = Vec::new();
        for layout in Layout::ALL {
            let row = self
                .measure(layout)
                .await
                .with_context(|| format!("step layout {}", layout.name()))?;
            self.reporter.report(&EdgeEvent::Layout(row.clone()))?;
            rows.push(row);
        }
        self.reporter.report(&EdgeEvent::Compared { layouts: rows })?;
        self.fail_board().await.context("step failure")?;
        self.reporter.report(&EdgeEvent::Finished { took_ms: elapsed_ms(start) })
    }

    fn boards(&self) -> EdgeEvent {
        let boards = self.fleet.nodes.iter().map(|node| BoardRow {
            name: node.name.clone(),
            board: node.board.clone(),
            link: node.link.rate.to_string(),
            devices: node.devices.iter().filter_map(|device| device.resource.clone()).collect(),
        });
        let stages = self.pipeline.stages.iter().map(|stage| match stage.output {
            Some(output) => format!("{} \u{2500}{output}\u{2500}> ", stage.name),
            None => stage.name.clone(),
        });
        EdgeEvent::Boards { simulated: true, boards: boards.collect(), pipeline: stages.collect() }
    }

    /// Measures the overhead of the stages' programs on this machine, which predictions include.
    async fn calibrate(&mut self) -> Result<()> {
        let progress = Progress::new();
        progress.show("measuring the overhead of the programs on this machine");
        self.fleet.overhead = measure_overhead(self.folder.path()).await?;
        drop(progress);
        let overhead = self.fleet.overhead;
        self.reporter.report(&EdgeEvent::Calibrated {
            hop_ms: 1e3 * overhead.hop.0,
            step_ms: 1e3 * overhead.batch_gap.0,
        })
    }

    async fn measure(&self, layout: Layout) -> Result<LayoutRow> {
        let plan = Plan::of(&self.pipeline, &self.fleet, layout)?;
        let measurement = measure_plan(
            &self.pipeline,
            &self.fleet,
            &plan,
            MEASUREMENT_DURATION,
            self.folder.path(),
        )
        .await?;
        let figures = measurement.figures;
        ensure!(
            figures.account.unheard == 0,
            "the outcome of {} items is unknown",
            figures.account.unheard
        );
        let rate = Some(figures.at_items_per_second);
        let prediction = Prediction::at(&self.pipeline, &self.fleet, &plan.placement, rate);
        Ok(LayoutRow {
            layout: layout.name(),
            places: self.places(&plan.placement),
            items_per_second: figures.items_per_second,
            predicted_items_per_second: prediction.throughput,
            at_items_per_second: figures.at_items_per_second,
            latency_ms: figures.latency.mean_ms,
            predicted_latency_ms: prediction.latency.as_ref().map(|latency| 1e3 * latency.total),
            bottleneck: self.writer().bottleneck(prediction.bottleneck),
        })
    }

    /// Fails a board of the planned layout under load, and moves its stages to other boards.
    async fn fail_board(&self) -> Result<()> {
        let plan = Plan::of(&self.pipeline, &self.fleet, Layout::Planned)?;
        let failed_node =
            self.board_to_fail(&plan.placement).context("all stages are on one board")?;
        let new_placement =
            move_off_node(&self.pipeline, &self.fleet, &plan.placement, failed_node)?;
        let mut boards = SimulatedBoards::start(
            &self.pipeline,
            &self.fleet,
            &plan.placement,
            self.folder.path(),
        )
        .await?;
        let rate = LOAD * Prediction::of(&self.pipeline, &self.fleet, &new_placement).throughput;
        let endpoints = endpoints(&self.pipeline, &boards)?;
        let load = endpoints.run_load(Load { rate: Some(rate), duration: LOAD_DURATION });
        let failure = async {
            sleep(FAILURE_DELAY).await;
            boards.fail_board(failed_node).await;
            let stages = self.stages_of(&plan.placement, failed_node);
            let board = self.fleet.nodes[failed_node].name.clone();
            self.reporter.report(&EdgeEvent::BoardFailed {
                board,
                stages,
                at_items_per_second: rate,
            })?;
            let start = Instant::now();
            boards.move_stages(&new_placement).await?;
            let stages_moved = self.writer().moved_stages(&new_placement, &plan.placement);
            self.reporter
                .report(&EdgeEvent::PlacedAnew { stages: stages_moved, took_ms: elapsed_ms(start) })
        };
        let (run, failure) = tokio::join!(load, failure);
        boards.stop().await;
        failure?;
        self.account(&run?)
    }

    fn account(&self, run: &LoadRun) -> Result<()> {
        let mut account = ItemAccount::default();
        account.add(run);
        let mut times: Vec<_> = run.arrived.iter().map(|arrival| arrival.at).collect();
        times.sort();
        let gap =
            times.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max().unwrap_or_default();
        self.reporter.report(&EdgeEvent::Account(AccountRow {
            sent: account.sent,
            arrived: account.arrived,
            failed: account.failed.into_iter().collect(),
            unheard: account.unheard,
            gap_ms: 1e3 * gap.as_secs_f64(),
        }))?;
        ensure!(run.missing == 0, "the outcome of {} items is unknown", run.missing);
        Ok(())
    }

    /// Board with the most stages, except for the first stage's board.
    fn board_to_fail(&self, placement: &Placement) -> Option<usize> {
        let first = placement.replicas[0][0].node;
        let others = (0..self.fleet.nodes.len()).filter(|node| *node != first);
        let stages = |node: &usize| self.stages_of(placement, *node).len();
        others.max_by_key(stages).filter(|node| stages(node) > 0)
    }

    fn stages_of(&self, placement: &Placement, node: usize) -> Vec<String> {
        let stages = self.pipeline.stages.iter().zip(&placement.replicas);
        let stages_on_node =
            stages.filter(|(_, replicas)| replicas.iter().any(|replica| replica.node == node));
        stages_on_node.map(|(stage, _)| stage.name.clone()).collect()
    }

    /// Stages with the places of their replicas.
    fn places(&self, placement: &Placement) -> Vec<(String, String)> {
        let writer = self.writer();
        let stages = self.pipeline.stages.iter().enumerate();
        stages
            .map(|(position, stage)| (stage.name.clone(), writer.places(position, placement)))
            .collect()
    }

    fn writer(&self) -> PlanWriter<'_> {
        PlanWriter { pipeline: &self.pipeline, fleet: &self.fleet }
    }
}
