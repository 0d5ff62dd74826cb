//! Plans as tables for a terminal.

use anyhow::Result;
use windlass_pipeline::quantity::{Bytes, Seconds};

use super::report::{LayoutReport, PlanReport, PredictedFigures, StageReport};
use crate::screen::{Paint, Style, Table, pluralized, print_line, wrapped};

/// Prints the layouts side by side, then each placement.
pub(super) fn print(report: &PlanReport) -> Result<()> {
    let paint = Paint::for_stdout();
    let nodes = pluralized(report.nodes, "node");
    let simulated = if report.simulated { ", SIMULATED boards" } else { "" };
    print_line(paint.styled(
        Style::Heading,
        format!("{}: {}, on {nodes}{simulated}", report.pipeline, report.goal),
    ))?;
    print_line("")?;
    let mut table = Table::new(["LAYOUT", "ITEMS/S", "LATENCY", "AT ITEMS/S", "BOTTLENECK"]);
    let dash = || "-".to_owned();
    for layout in &report.layouts {
        let [throughput, latency, item_rate, bottleneck] = match &layout.figures {
            Some(figures) => [
                rate(figures.items_per_second),
                latency(figures),
                rate(figures.at_items_per_second),
                figures.bottleneck.clone(),
            ],
            None => [dash(), dash(), dash(), layout.fits_nowhere.clone().unwrap_or_default()],
        };
        table.add_row([layout.layout.to_owned(), throughput, latency, item_rate, bottleneck]);
    }
    table.print()?;
    for layout in report.layouts.iter().filter(|layout| layout.figures.is_some()) {
        print_line("")?;
        print_layout(layout, paint)?;
    }
    Ok(())
}

fn print_layout(layout: &LayoutReport, paint: Paint) -> Result<()> {
    print_line(paint.styled(Style::Heading, layout.layout))?;
    let mut table =
        Table::new(["STAGE", "NODE", "ON", "WAIT", "WORK", "LOAD", "NEXT", "SIZE", "LINK"]);
    for stage in &layout.stages {
        add_stage(&mut table, layout, stage);
    }
    table.print()?;
    if let Some(reason) = &layout.goal_not_met {
        print_line(paint.styled(Style::Error, format!("The goal is not met: {reason}.")))?;
    }
    let mut notes = Vec::new();
    if layout.layout == "planned" {
        notes.push(match &layout.bound {
            None => "No placement is better.".to_owned(),
            Some(bound) => {
                format!("The search was cut short: no placement is better than {bound}.")
            }
        });
    }
    if let Some(next) = &layout.next_best {
        let differs = next.differs.join(", ");
        notes.push(format!("Next best: {}, with {differs}.", summary(&next.figures)));
    }
    for added in &layout.one_more {
        let figures = summary(&added.figures);
        notes.push(format!("One more {} on {}: {figures}.", added.device, added.node));
    }
    for note in notes {
        wrapped("", note.split(' '))
            .into_iter()
            .try_for_each(|text| print_line(paint.styled(Style::Muted, text)))?;
    }
    Ok(())
}

/// Adds as many rows as the stage has replicas or links, whichever are more.
fn add_stage(table: &mut Table, layout: &LayoutReport, stage: &StageReport) {
    let links: Vec<_> = layout.links.iter().filter(|link| link.from == stage.stage).collect();
    for row in 0..stage.replicas.len().max(links.len()) {
        let in_first_row = |text: String| if row == 0 { text } else { String::new() };
        let (node, device) = stage
            .replicas
            .get(row)
            .map(|replica| (replica.node.clone(), replica.on.clone()))
            .unwrap_or_default();
        let (next, size, time) = links.get(row).map_or_else(Default::default, |link| {
            (link.to.clone(), Bytes(link.bytes).to_string(), ms_or_dash(link.ms))
        });
        let load = in_first_row(
            stage.load.map_or_else(|| "-".to_owned(), |load| format!("{:.0}%", 100.0 * load)),
        );
        table.add_row([
            in_first_row(stage.stage.clone()),
            node,
            device,
            in_first_row(ms_or_dash(stage.waited_ms)),
            in_first_row(ms_or_dash(stage.worked_ms)),
            load,
            next,
            size,
            time,
        ]);
    }
}

fn summary(figures: &PredictedFigures) -> String {
    let latency = match figures.latency_ms {
        Some(ms) => format!("{} at {}", format_ms(ms), rate(figures.at_items_per_second)),
        None => "too slow for the rate".to_owned(),
    };
    format!(
        "{} items/s, {latency}, bottleneck {}",
        rate(figures.items_per_second),
        figures.bottleneck
    )
}

fn latency(figures: &PredictedFigures) -> String {
    figures.latency_ms.map_or_else(|| "too slow".to_owned(), format_ms)
}

fn ms_or_dash(ms: Option<f64>) -> String {
    ms.map_or_else(|| "-".to_owned(), format_ms)
}

/// Milliseconds in a fitting unit.
pub(super) fn format_ms(ms: f64) -> String {
    Seconds(ms / 1e3).to_string()
}

fn rate(items_per_second: f64) -> String {
    if items_per_second >= 100.0 {
        format!("{items_per_second:.0}")
    } else {
        format!("{items_per_second:.1}")
    }
}
