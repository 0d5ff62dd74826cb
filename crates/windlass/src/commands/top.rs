//! `windlass top`: the devices of this node with their load and their holders, live.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::time::{sleep, timeout};
use windlass_node::get_page;
use windlass_page::{DeviceView, Document, Health, HolderView, Summary};

use crate::{
    cli::NodeTopArgs,
    screen::{
        FullScreen, Paint, Style, Table, pluralized, print_line, replace_control_chars,
        terminal_width, truncated,
    },
    stop::StopSignals,
};

/// Refresh interval of the display of a node or a cluster.
pub(super) const REFRESH_INTERVAL: Duration = Duration::from_secs(2);
/// Time limit for the agent's answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(4);
/// Maximum number of holders of a device in a table; JSON has all.
const MAX_HOLDERS: usize = 3;

pub(crate) async fn run(args: NodeTopArgs) -> Result<()> {
    let state = async || {
        let answer = timeout(ANSWER_LIMIT, get_page(&args.probe_socket, "/page/state")).await;
        let answer = answer
            .with_context(|| format!("the agent did not answer within {ANSWER_LIMIT:?}"))??;
        ensure!(answer.is_ok, "{}", answer.report.trim_end());
        read(&answer.report)
    };
    show(state, args.once).await
}

/// Shows a node's state until stopped, or once.
pub(super) async fn show(state: impl AsyncFn() -> Result<Document>, once: bool) -> Result<()> {
    let Some(mut screen) = FullScreen::new().filter(|_| !once) else {
        return Ok(to_lines(&state().await?, None).into_iter().try_for_each(print_line)?);
    };
    let mut signals = StopSignals::listen()?;
    let draw_loop = async {
        // A failure of the first request ends the command; later failures are shown.
        let mut last_state = state().await?;
        let mut failure = None;
        loop {
            let mut lines = to_lines(&last_state, terminal_width());
            lines.extend(failure.map(|message: String| {
                Paint::for_stdout().styled(Style::Error, replace_control_chars(&message))
            }));
            screen.draw(&lines)?;
            sleep(REFRESH_INTERVAL).await;
            match state().await {
                Ok(document) => (last_state, failure) = (document, None),
                Err(error) => failure = Some(format!("{error:#}")),
            }
        }
    };
    tokio::select! {
        result = draw_loop => result,
        _ = signals.recv() => Ok(()),
    }
}

/// Parses the document of an agent.
pub(super) fn read(text: &str) -> Result<Document> {
    serde_json::from_str(text)
        .context("the agent's answer is not a document of the page: has the agent another version?")
}

/// Lines that show a node's state.
fn to_lines(state: &Document, width: Option<usize>) -> Vec<String> {
    let paint = Paint::for_stdout();
    let node = state.nodes.first();
    let simulated = if state.simulated { ", SIMULATED" } else { "" };
    let name = node.map_or("this node", |node| &node.name);
    let Summary { gpus, free_gpus, .. } = state.summary;
    let headline = replace_control_chars(&format!(
        "{name}{simulated}: {}, {free_gpus} free, {}",
        pluralized(gpus, "GPU"),
        state.time
    ));
    let mut lines = vec![paint.styled(Style::Heading, fit_width(&headline, width))];
    let mut table = Table::new(["DEVICE", "LOAD", "MEMORY", "TEMP", "POWER", "HEALTH", "HELD BY"]);
    let mut faults = Vec::new();
    let devices = node.into_iter().flat_map(|node| &node.devices);
    for device in devices.filter(|device| is_shown(device)) {
        table.add_row(row(device));
        if let Some(reason) = &device.reason {
            let action =
                device.action.as_ref().map(|action| format!("; {action}")).unwrap_or_default();
            let text = replace_control_chars(&format!("{}: {reason}{action}", title(device)));
            faults.push(paint.styled(Style::Error, fit_width(&text, width)));
        }
    }
    lines.extend(width.map_or_else(|| table.lines(""), |width| table.lines_within(width)));
    lines.extend(faults);
    lines
}

/// True for GPUs, for devices that containers can have or hold, and for unhealthy devices. The document has other
/// devices, such as disks, for the topology.
fn is_shown(device: &DeviceView) -> bool {
    let is_gpu = ["gpu", "mig"].contains(&device.kind.as_str());
    let is_offered_or_held = device.resource.is_some() || !device.holders.is_empty();
    is_gpu || is_offered_or_held || device.health == Health::Unhealthy
}

fn fit_width(text: &str, width: Option<usize>) -> String {
    width.map_or_else(|| text.to_owned(), |width| truncated(text, width))
}

fn row(device: &DeviceView) -> [String; 7] {
    let dash = || "-".to_owned();
    let total = device.memory_bytes.map(|bytes| format!("{} GiB", gib(bytes)));
    let memory = match (device.memory_used_bytes, total) {
        (Some(used), Some(total)) => format!("{}/{total}", gib(used)),
        (None, Some(total)) => total,
        _ => dash(),
    };
    let health = match device.health {
        Health::Healthy => "healthy",
        Health::Unhealthy => "unhealthy",
        Health::Unknown => "unknown",
    };
    [
        title(device),
        device.utilization.map_or_else(dash, |fraction| format!("{:.0} %", fraction * 100.0)),
        memory,
        device.temperature_celsius.map_or_else(dash, |celsius| format!("{celsius} C")),
        device.power_watts.map_or_else(dash, |watts| format!("{watts:.0} W")),
        health.to_owned(),
        holders(device),
    ]
}

/// GiB with one decimal.
fn gib(bytes: u64) -> String {
    let mib = u32::try_from(bytes >> 20).unwrap_or(u32::MAX);
    format!("{:.1}", f64::from(mib) / 1024.0)
}

/// Name as in `windlass devices`: `GPU3`.
fn title(device: &DeviceView) -> String {
    format!("{}{}", device.kind.to_uppercase(), device.index)
}

fn holders(device: &DeviceView) -> String {
    let name = |holder: &HolderView| {
        let claim = || Some(format!("claim {}", holder.claim.as_ref()?));
        let suffix = if holder.over_limit { " (over its limit)" } else { "" };
        holder.pod.clone().or_else(claim).unwrap_or_else(|| "a container".to_owned()) + suffix
    };
    let holders = &device.holders;
    if holders.is_empty() { "-".to_owned() } else { first_holders(holders.iter().map(name)) }
}

/// The first holders of a device, and the number of the others.
pub(super) fn first_holders(holders: impl ExactSizeIterator<Item = String>) -> String {
    let omitted = holders.len().saturating_sub(MAX_HOLDERS);
    let last = (omitted > 0).then(|| format!("{omitted} more"));
    holders.take(MAX_HOLDERS).chain(last).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_table_shows_load_memory_health_and_holders_in_eighty_columns() {
        let holder = |pod: &str| json!({"pod": pod});
        let text = json!({
            "revision": "1-2", "complete": true, "source": "node", "version": "0.1.0", "newer": 7,
            "simulated": true, "time": "2026-11-26T16:00:00Z",
            "summary": {"gpus": 2, "freeGpus": 0, "idleGpus": 0},
            "nodes": [{"name": "n", "devices": [
                {"kind": "gpu", "index": 0, "health": "healthy", "utilization": 0.934,
                 "memoryBytes": 85_899_345_920_u64, "memoryUsedBytes": 1_073_741_824_u64,
                 "temperatureCelsius": 54, "powerWatts": 412.0,
                 "holders": [holder("d/a"), holder("d/b"), holder("d/c"), holder("d/d")]},
                {"kind": "gpu", "index": 1, "health": "unhealthy", "reason": "XID 79", "action": "restart",
                 "holders": [{"claim": "d/c", "overLimit": true}, {}]},
                {"kind": "nvme", "index": 0, "health": "healthy"},
                {"kind": "mig", "index": 0, "health": "resting"},
            ]}],
        });
        let state = read(&text.to_string()).expect("a document of a newer agent");
        let lines = to_lines(&state, Some(80));
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{lines:#?}");
        assert_eq!(
            lines,
            [
                "n, SIMULATED: 2 GPUs, 0 free, 2026-11-26T16:00:00Z",
                "DEVICE  LOAD  MEMORY        TEMP  POWER  HEALTH     HELD BY",
                "GPU0    93 %  1.0/80.0 GiB  54 C  412 W  healthy    d/a, d/b, d/c, 1 more",
                "GPU1    -     -             -     -      unhealthy  claim d/c (over its limit),…",
                "MIG0    -     -             -     -      unknown    -",
                "GPU1: XID 79; restart",
            ]
        );
    }

    #[test]
    fn an_answer_of_another_format_is_reported() {
        for text in ["", "{}", "[]", r#"{"nodes": 7}"#] {
            let error = read(text).expect_err(text).to_string();
            assert!(error.contains("has the agent another version?"), "{error}");
        }
    }
}
