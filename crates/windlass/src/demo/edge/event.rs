//! Events of the edge demo.

use serde::Serialize;

/// Event. Times are milliseconds.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(super) enum EdgeEvent {
    /// Boards and pipeline of the demo.
    Boards { simulated: bool, boards: Vec<BoardRow>, pipeline: String },
    /// Overhead of the stages' programs on this machine, an input of the predictions.
    Calibrated { hop_ms: f64, step_ms: f64 },
    /// A layout was predicted and measured.
    Layout(LayoutRow),
    /// All layouts, for comparison.
    Compared { layouts: Vec<LayoutRow> },
    /// A board loses power under load.
    BoardFailed { board: String, stages: Vec<String>, at_items_per_second: f64 },
    /// The stages of the failed board run on other boards.
    PlacedAnew { stages: Vec<String>, took_ms: f64 },
    /// Outcome of all items.
    Account(AccountRow),
    /// All steps are done.
    Finished { took_ms: f64 },
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct BoardRow {
    pub(super) name: String,
    pub(super) board: String,
    pub(super) link: String,
    pub(super) devices: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LayoutRow {
    pub(super) layout: &'static str,
    /// Stage and its boards, in the order of the pipeline.
    pub(super) places: Vec<(String, String)>,
    pub(super) items_per_second: f64,
    pub(super) predicted_items_per_second: f64,
    pub(super) at_items_per_second: f64,
    pub(super) latency_ms: f64,
    pub(super) predicted_latency_ms: Option<f64>,
    pub(super) bottleneck: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AccountRow {
    pub(super) sent: u64,
    pub(super) arrived: u64,
    /// Items that failed with the board, by stage and reason.
    pub(super) failed: Vec<(String, u64)>,
    /// Items without a result or an error.
    pub(super) unheard: u64,
    /// Longest time between two results.
    pub(super) gap_ms: f64,
}
