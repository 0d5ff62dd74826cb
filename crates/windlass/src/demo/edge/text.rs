//! Text form of the edge demo's events.

use super::event::{AccountRow, BoardRow, EdgeEvent, LayoutRow};
use crate::{
    demo::report::{Render, Renderer},
    screen::{Style, Table, pluralized},
};

/// Width of the longest bar.
const MAX_BAR_WIDTH: f64 = 48.0;

impl Render for EdgeEvent {
    fn lines(&self, render: Renderer) -> Vec<String> {
        match self {
            Self::Boards { boards, pipeline, simulated: _ } => {
                board_table(render, boards, pipeline)
            }
            Self::Calibrated { hop_ms, step_ms } => {
                let text = format!(
                    "Overhead on this machine: {hop_ms:.2} ms from stage to stage, {step_ms:.2} ms between two batches."
                );
                let mut lines = vec![String::new(), render.muted(text)];
                lines.extend(
                    render.heading(
                        "Three layouts, each predicted, then run with real stages over gRPC",
                    ),
                );
                lines
            }
            Self::Layout(row) => layout(render, row),
            Self::Compared { layouts } => compared(render, layouts),
            Self::BoardFailed { board, stages, at_items_per_second } => {
                let mut lines = render.heading("A board fails while items flow");
                let (stages, cross) =
                    (stages.join(" and "), render.styled(Style::Error, "\u{2717}"));
                lines.push(format!(
                    "  {cross} {board} loses its power at {at_items_per_second:.0} items/s, with the stages {stages}"
                ));
                lines
            }
            Self::PlacedAnew { stages, took_ms } => {
                let (ok, elapsed) = (render.ok(), render.elapsed(*took_ms));
                vec![format!("  {ok} moved to other boards: {} {elapsed}", stages.join(", "))]
            }
            Self::Account(row) => account(render, row),
            Self::Finished { took_ms } => {
                vec![String::new(), render.bold(format!("Done in {:.0} s.", took_ms / 1e3))]
            }
        }
    }
}

fn board_table(render: Renderer, boards: &[BoardRow], pipeline: &str) -> Vec<String> {
    let mut table = Table::default();
    for row in boards {
        let devices =
            if row.devices.is_empty() { "CPUs alone".to_owned() } else { row.devices.join(", ") };
        table.add_row([row.name.clone(), row.board.clone(), row.link.clone(), devices]);
    }
    let title = format!(
        "{}, SIMULATED: stages wait for their stated times, links have the boards' rates",
        pluralized(boards.len(), "board")
    );
    let mut lines = vec![render.styled(Style::Warning, title)];
    lines.extend(table.lines("  "));
    lines.extend([String::new(), format!("Pipeline of a video doorbell: {pipeline}")]);
    lines
}

/// Largest relative difference of a measurement from its prediction that is marked `ok`. A busy machine exceeds it.
const TOLERANCE: f64 = 0.15;

fn layout(render: Renderer, row: &LayoutRow) -> Vec<String> {
    let name = render.bold(row.layout);
    let is_off = (row.items_per_second / row.predicted_items_per_second - 1.0).abs() > TOLERANCE;
    let mark = if is_off { render.styled(Style::Warning, "!!") } else { render.ok() };
    let places = row.places.iter().map(|(stage, place)| format!("{stage} on {place}"));
    let predicted =
        row.predicted_latency_ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.0}"));
    vec![
        format!(
            "  {mark} {name}: {:.0} items/s, predicted {:.0}",
            row.items_per_second, row.predicted_items_per_second
        ),
        format!(
            "    {:.0} ms at {:.0} items/s, predicted {predicted} ms; bottleneck: {}",
            row.latency_ms, row.at_items_per_second, row.bottleneck
        ),
        render.muted(format!("    {}", places.collect::<Vec<_>>().join(", "))),
    ]
}

/// Bars of the measured throughput, and the gain of the plan.
fn compared(render: Renderer, layouts: &[LayoutRow]) -> Vec<String> {
    let max_throughput =
        layouts.iter().map(|row| row.items_per_second).fold(f64::MIN_POSITIVE, f64::max);
    let mut lines = vec![String::new()];
    lines.extend(layouts.iter().map(|row| {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a bar is short"
        )]
        let length = (MAX_BAR_WIDTH * row.items_per_second / max_throughput).round() as usize;
        format!(
            "  {:8} {:<48} {:>6.1} items/s",
            row.layout,
            "\u{2588}".repeat(length),
            row.items_per_second
        )
    }));
    let others =
        layouts.iter().filter(|row| row.layout != "planned").map(|row| row.items_per_second);
    let best_other = others.fold(f64::MIN_POSITIVE, f64::max);
    if let Some(planned) = layouts.iter().find(|row| row.layout == "planned") {
        let gain = 100.0 * (planned.items_per_second / best_other - 1.0);
        lines.push(String::new());
        lines.push(if gain >= 0.0 {
            format!(
                "  {} the plan has {gain:.0} % more throughput than the better of the other layouts",
                render.ok()
            )
        } else {
            let mark = render.styled(Style::Warning, "!!");
            let loss = -gain;
            format!("  {mark} the plan has {loss:.0} % less throughput than the better of the other layouts")
        });
    }
    lines
}

fn account(render: Renderer, row: &AccountRow) -> Vec<String> {
    let ok = if row.unheard == 0 { render.ok() } else { render.styled(Style::Error, "\u{2717}") };
    let mut lines = vec![format!(
        "  {ok} {} items: {} arrived, {} failed with the board, {} have an unknown outcome; \
         {:.0} ms without a result",
        row.sent,
        row.arrived,
        row.failed.iter().map(|(_, count)| count).sum::<u64>(),
        row.unheard,
        row.gap_ms
    )];
    lines.extend(
        row.failed.iter().map(|(reason, count)| render.muted(format!("    {count} at {reason}"))),
    );
    lines
}
