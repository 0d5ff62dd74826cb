//! Measured figures as tables for a terminal.

use anyhow::Result;

use super::{MeasureReport, MeasuredLayout, SkippedLayout};
use crate::{
    commands::pipeline::table::format_ms,
    measurement::figures::{MeasuredFigures, Times},
    screen::{Paint, Style, Table, print_line},
};

/// Prints a row for each layout, then a table of its stages.
pub(super) fn print(report: &MeasureReport) -> Result<()> {
    let paint = Paint::for_stdout();
    let simulated = if report.simulated { ", on SIMULATED boards" } else { "" };
    print_line(paint.styled(Style::Heading, format!("{}: measured{simulated}", report.pipeline)))?;
    print_line("")?;
    let mut table = Table::new([
        "LAYOUT",
        "ITEMS/S",
        "PREDICTED",
        "AT ITEMS/S",
        "MEAN",
        "PREDICTED",
        "P50",
        "P95",
        "P99",
    ]);
    for layout in &report.layouts {
        table.add_row(summary(layout));
    }
    if !report.layouts.is_empty() {
        table.print()?;
    }
    for layout in &report.layouts {
        print_line("")?;
        print_layout(layout, paint)?;
    }
    if !report.left_out.is_empty() {
        print_line("")?;
    }
    for SkippedLayout { layout, reason, has_failed } in &report.left_out {
        let style = if *has_failed { Style::Error } else { Style::Warning };
        print_line(paint.styled(style, format!("{layout} was not measured: {reason}")))?;
    }
    if let Some(verdict) = &report.verdict {
        print_line("")?;
        print_line(paint.styled(Style::Heading, verdict.text()))?;
    }
    if let Some(namespace) = &report.runs_in {
        let subject = report.verdict.as_ref().map_or("The measured layout", |_| "It");
        print_line(format_args!("{subject} runs in namespace {namespace} now."))?;
    }
    Ok(())
}

fn summary(layout: &MeasuredLayout) -> [String; 9] {
    let measured = &layout.measured;
    let predicted = layout.predicted.as_ref();
    let dash = || "-".to_owned();
    [
        layout.layout.unwrap_or("-").to_owned(),
        throughput(measured),
        predicted.map_or_else(dash, |prediction| format!("{:.1}", prediction.items_per_second)),
        format!("{:.1}", measured.at_items_per_second),
        format_ms(measured.latency.mean_ms),
        predicted.and_then(|prediction| prediction.latency_ms).map_or_else(dash, format_ms),
        format_ms(measured.latency.p50_ms),
        format_ms(measured.latency.p95_ms),
        format_ms(measured.latency.p99_ms),
    ]
}

fn throughput(measured: &MeasuredFigures) -> String {
    let rate = format!("{:.1}", measured.items_per_second);
    measured.plus_minus.map_or_else(|| rate.clone(), |half| format!("{rate} \u{b1} {half:.1}"))
}

fn print_layout(layout: &MeasuredLayout, paint: Paint) -> Result<()> {
    let measured = &layout.measured;
    let name = layout.layout.unwrap_or("pipeline");
    let at = measured.at_items_per_second;
    print_line(
        paint.styled(Style::Heading, format!("{name}: p50, p95 and p99 at {at:.1} items/s")),
    )?;
    let mut table = Table::new(["STAGE", "LINK IN", "WAITED", "WORKED", "BLOCKED BY NEXT"]);
    for stage in &measured.stages {
        let link = measured.links.iter().find(|link| link.to == stage.stage);
        let link = link.map_or_else(|| "-".to_owned(), |link| quantiles(&link.time));
        let times = [&stage.waited, &stage.worked, &stage.sending].map(quantiles);
        let [waited, worked, sending] = times;
        table.add_row([stage.stage.clone(), link, waited, worked, sending]);
    }
    table.print()?;
    let account = &measured.account;
    print_line(format_args!("{} items sent, {} arrived.", account.sent, account.arrived))?;
    for (reason, count) in &account.failed {
        print_line(paint.styled(Style::Error, format!("{count} failed at {reason}")))?;
    }
    if account.unheard > 0 {
        print_line(
            paint.styled(Style::Error, format!("{} have an unknown outcome", account.unheard)),
        )?;
    }
    Ok(())
}

fn quantiles(times: &Times) -> String {
    format!("{} {} {}", format_ms(times.p50_ms), format_ms(times.p95_ms), format_ms(times.p99_ms))
}
