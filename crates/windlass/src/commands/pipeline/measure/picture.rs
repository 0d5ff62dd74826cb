//! Measured times as an SVG chart. Each stage has a bar of mean times: on the link, in the queue, at work, and blocked
//! by the next stage. Means add up, unlike quantiles.

use std::fmt::{self, Write as _};

use super::{MeasureReport, MeasuredLayout};
use crate::measurement::figures::{StageTimes, to_f64};

/// Part of an item's time at a stage, with its colour.
struct Part {
    name: &'static str,
    /// Colour of a palette that is safe for colour blindness (Okabe and Ito, 2008).
    colour: &'static str,
}

const PARTS: [Part; 4] = [
    Part { name: "link in", colour: "#56b4e9" },
    Part { name: "waited", colour: "#e69f00" },
    Part { name: "worked", colour: "#009e73" },
    Part { name: "blocked by the next stage", colour: "#cc79a7" },
];

// Sizes in pixels.
const WIDTH: f64 = 860.0;
const MARGIN: f64 = 20.0;
/// Leaves room for names of thirty letters, the longest.
const BARS_FROM: f64 = 250.0;
const BARS_TO: f64 = 770.0;
const ROW_HEIGHT: f64 = 24.0;
const BAR_HEIGHT: f64 = 14.0;
/// Approximate width of a letter of the legend.
const LETTER_WIDTH: f64 = 7.5;

/// Draws the report.
pub(super) fn svg(report: &MeasureReport) -> String {
    let rows: usize = report.layouts.iter().map(|layout| layout.measured.stages.len() + 2).sum();
    let height = MARGIN + ROW_HEIGHT * (to_f64(rows) + 3.0);
    let mut out = String::new();
    draw(report, height, &mut out).expect("a write to a string does not fail");
    out
}

fn draw(report: &MeasureReport, height: f64, out: &mut String) -> fmt::Result {
    write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" font-family=\"system-ui, sans-serif\" font-size=\"13\" fill=\"#222\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n"
    )?;
    let mut y = MARGIN + BAR_HEIGHT;
    let simulated = if report.simulated { ", on SIMULATED boards" } else { "" };
    let title = format!("{}: mean times of an item{simulated}", report.pipeline);
    text(out, (MARGIN, y), "font-weight=\"bold\" font-size=\"15\"", &title)?;
    y += ROW_HEIGHT;
    legend(out, y)?;
    let times = report.layouts.iter().flat_map(|layout| {
        let stages = layout.measured.stages.iter();
        stages.map(move |stage| parts(layout, stage).iter().sum::<f64>())
    });
    let longest = times.fold(0.0, f64::max);
    // Without measured times, all bars are empty.
    let pixels_per_ms = if longest > 0.0 { (BARS_TO - BARS_FROM) / longest } else { 0.0 };
    for layout in &report.layouts {
        y += 1.5 * ROW_HEIGHT;
        text(out, (MARGIN, y), "font-weight=\"bold\"", &summary(layout))?;
        for stage in &layout.measured.stages {
            y += ROW_HEIGHT;
            bar(out, y, layout, stage, pixels_per_ms)?;
        }
        y += ROW_HEIGHT / 2.0;
    }
    out.write_str("</svg>\n")
}

fn legend(out: &mut String, y: f64) -> fmt::Result {
    let mut x = MARGIN;
    for Part { name, colour } in &PARTS {
        rectangle(out, (x, y), BAR_HEIGHT, colour)?;
        text(out, (x + BAR_HEIGHT + 6.0, y), "", name)?;
        x += BAR_HEIGHT + 24.0 + LETTER_WIDTH * to_f64(name.len());
    }
    Ok(())
}

fn bar(
    out: &mut String,
    y: f64,
    layout: &MeasuredLayout,
    stage: &StageTimes,
    pixels_per_ms: f64,
) -> fmt::Result {
    text(out, (MARGIN, y), "", &stage.stage)?;
    let mut x = BARS_FROM;
    let times = parts(layout, stage);
    for (Part { colour, .. }, ms) in PARTS.iter().zip(times) {
        rectangle(out, (x, y), ms * pixels_per_ms, colour)?;
        x += ms * pixels_per_ms;
    }
    text(out, (x + 6.0, y), "", &format!("{:.1} ms", times.iter().sum::<f64>()))
}

/// Times of [`PARTS`] in milliseconds.
fn parts(layout: &MeasuredLayout, stage: &StageTimes) -> [f64; 4] {
    let link = layout.measured.links.iter().find(|link| link.to == stage.stage);
    let link = link.map_or(0.0, |link| link.time.mean_ms);
    [link, stage.waited.mean_ms, stage.worked.mean_ms, stage.sending.mean_ms]
}

fn summary(layout: &MeasuredLayout) -> String {
    let measured = &layout.measured;
    let predicted = layout.predicted.as_ref();
    let comparison = |value: Option<f64>| {
        value.map_or_else(String::new, |value| format!(" (predicted {value:.1})"))
    };
    format!(
        "{}: {:.1} items/s{}, {:.1} ms{} at {:.1} items/s",
        layout.layout.unwrap_or("pipeline"),
        measured.items_per_second,
        comparison(predicted.map(|prediction| prediction.items_per_second)),
        measured.latency.mean_ms,
        comparison(predicted.and_then(|prediction| prediction.latency_ms)),
        measured.at_items_per_second,
    )
}

/// Draws a text. Names of pipelines and stages need no XML escapes.
fn text(out: &mut String, (x, y): (f64, f64), style: &str, text: &str) -> fmt::Result {
    writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" {style}>{text}</text>")
}

/// Draws a rectangle on the line of a text.
fn rectangle(out: &mut String, (x, y): (f64, f64), width: f64, colour: &str) -> fmt::Result {
    let top = y - BAR_HEIGHT + 2.0;
    writeln!(
        out,
        "<rect x=\"{x:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{BAR_HEIGHT}\" fill=\"{colour}\"/>"
    )
}
