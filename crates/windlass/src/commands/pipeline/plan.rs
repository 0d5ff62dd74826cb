//! `windlass pipeline plan`: placement and prediction of each layout.

use anyhow::{Result, ensure};
use windlass_pipeline::{Layout, Plan, plan::gains};

use super::{fleet, pipeline, report, table};
use crate::{cli::PlanArgs, commands::print_output};

/// Order of the layouts in the report. The planned layout is first, because readers look for it.
const ORDER: [Layout; 3] = [Layout::Planned, Layout::Pods, Layout::Pod];

pub(super) async fn run(args: PlanArgs) -> Result<()> {
    let pipeline = pipeline(&args.pipeline)?;
    let fleet = fleet::fleet(&args.fleet, &pipeline).await?;
    let layouts = args.layout.map_or_else(|| ORDER.to_vec(), |layout| vec![layout]);
    let writer = report::PlanWriter { pipeline: &pipeline, fleet: &fleet };
    let mut reports = Vec::new();
    for layout in layouts {
        let plan = Plan::of(&pipeline, &fleet, layout);
        let gains = match (&plan, layout) {
            (Ok(plan), Layout::Planned) => gains(&pipeline, &fleet, plan),
            _ => Vec::new(),
        };
        reports.push(writer.layout(layout, plan.as_ref(), &gains));
    }
    let report = writer.report(reports);
    print_output(args.output, &report, || table::print(&report))?;
    let unplaced: Vec<_> = report
        .layouts
        .iter()
        .filter(|layout| layout.fits_nowhere.is_some())
        .map(|layout| layout.layout)
        .collect();
    ensure!(unplaced.is_empty(), "no placement for the layout {}", unplaced.join(", "));
    let meets_goal = |layout: &report::LayoutReport| layout.goal_not_met.is_none();
    ensure!(report.layouts.iter().any(meets_goal), "no layout meets the goal");
    Ok(())
}
