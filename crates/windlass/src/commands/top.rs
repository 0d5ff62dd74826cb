//! `windlass top`: the devices of this node with their load and their holders, live.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde_json::Value;
use tokio::time::{sleep, timeout};
use windlass_node::ask_agent;

use crate::{
    screen::{Paint, Redraw, Table, Tone, line, plain, shortened, terminal_width},
    stop::Stop,
};

#[derive(Args, Debug)]
#[command(after_help = "\
It asks the node's agent, on the socket of its probes:
  kubectl -n windlass-system exec -it daemonset/windlass-node -- /usr/bin/windlass top

Examples:
  windlass top --probe-socket /run/windlass/probe.sock
  windlass top --probe-socket /run/windlass/probe.sock --once

Names of pods need `disclose: [pods]`. `windlass cluster top` shows a cluster.")]
pub(crate) struct TopOfNodeArgs {
    /// Socket of `windlass node --probe-socket`
    #[arg(long, value_name = "PATH", env = "WINDLASS_PROBE_SOCKET")]
    probe_socket: PathBuf,
    /// Print once and exit, as to a pipe.
    #[arg(long)]
    once: bool,
}

/// Time between two pictures, of a node and of a cluster.
pub(super) const INTERVAL: Duration = Duration::from_secs(2);
/// Time for the agent's answer.
const LIMIT: Duration = Duration::from_secs(4);
/// Holders of a device in a table; JSON has all.
const HOLDERS_SHOWN: usize = 3;

pub(super) async fn run(args: TopOfNodeArgs) -> Result<()> {
    let state = async || {
        let answer = timeout(LIMIT, ask_agent(&args.probe_socket, "/page/state")).await;
        let answer =
            answer.with_context(|| format!("the agent did not answer within {LIMIT:?}"))??;
        ensure!(answer.is_ok, "{}", answer.report.trim_end());
        Ok(serde_json::from_str(&answer.report)?)
    };
    show(state, args.once).await
}

/// Shows a node's state until stopped, or once.
pub(super) async fn show(state: impl AsyncFn() -> Result<Value>, once: bool) -> Result<()> {
    let Some(mut screen) = Redraw::new().filter(|_| !once) else {
        return Ok(picture(&state().await?, None).into_iter().try_for_each(line)?);
    };
    let mut signals = Stop::listen()?;
    let pictures = async {
        // The first answer has to come; later ones may fail.
        let mut last = state().await?;
        let mut failure = None;
        loop {
            let mut lines = picture(&last, terminal_width());
            lines.extend(
                failure.map(|why: String| Paint::for_stdout().text(Tone::Bad, plain(&why))),
            );
            screen.draw(&lines)?;
            sleep(INTERVAL).await;
            match state().await {
                Ok(now) => (last, failure) = (now, None),
                Err(error) => failure = Some(format!("{error:#}")),
            }
        }
    };
    tokio::select! {
        failed = pictures => failed,
        _ = signals.requested() => Ok(()),
    }
}

/// The lines of a node's state.
fn picture(state: &Value, width: Option<usize>) -> Vec<String> {
    let paint = Paint::for_stdout();
    let node = &state["nodes"][0];
    let simulated = if state["simulated"] == true { ", SIMULATED" } else { "" };
    let name = node["name"].as_str().unwrap_or("this node");
    let (gpus, free) = (&state["summary"]["gpus"], &state["summary"]["freeGpus"]);
    let time = state["time"].as_str().unwrap_or_default();
    let headline = plain(&format!("{name}{simulated}: {gpus} GPUs, {free} free, {time}"));
    let mut lines = vec![paint.text(Tone::Strong, cut(&headline, width))];
    let mut table = Table::new(["DEVICE", "LOAD", "MEMORY", "TEMP", "POWER", "HEALTH", "HELD BY"]);
    let mut faults = Vec::new();
    let devices = node["devices"].as_array().into_iter().flatten();
    for device in devices.filter(|device| is_shown(device)) {
        table.row(row(device));
        if let Some(reason) = device["reason"].as_str() {
            let action = device["action"].as_str().map(|it| format!("; {it}")).unwrap_or_default();
            let text = plain(&format!("{}: {reason}{action}", title(device)));
            faults.push(paint.text(Tone::Bad, cut(&text, width)));
        }
    }
    lines.extend(width.map_or_else(|| table.lines(""), |width| table.lines_within(width)));
    lines.extend(faults);
    lines
}

/// Devices that containers can have, or that need attention. Others, such as disks, are there for the topology.
fn is_shown(device: &Value) -> bool {
    let is_gpu = ["gpu", "mig"].iter().any(|kind| device["kind"] == *kind);
    let has = |field: &str| !device[field].is_null();
    is_gpu || has("resource") || has("holders") || device["health"] == "unhealthy"
}

fn cut(text: &str, width: Option<usize>) -> String {
    width.map_or_else(|| text.to_owned(), |width| shortened(text, width))
}

fn row(device: &Value) -> [String; 7] {
    let number = |field: &str| device[field].as_f64();
    let unknown = || "-".to_owned();
    let gib = |bytes: f64| format!("{:.1}", bytes / f64::from(1 << 30));
    let total = number("memoryBytes").map(|bytes| format!("{} GiB", gib(bytes)));
    let memory = match (number("memoryUsedBytes"), total) {
        (Some(used), Some(total)) => format!("{}/{total}", gib(used)),
        (None, Some(total)) => total,
        _ => unknown(),
    };
    [
        title(device),
        number("utilization").map_or_else(unknown, |part| format!("{:.0} %", part * 100.0)),
        memory,
        number("temperatureCelsius").map_or_else(unknown, |it| format!("{it:.0} C")),
        number("powerWatts").map_or_else(unknown, |it| format!("{it:.0} W")),
        device["health"].as_str().unwrap_or("unknown").to_owned(),
        holders(device),
    ]
}

/// `GPU3`, as `windlass devices` counts.
fn title(device: &Value) -> String {
    let kind = device["kind"].as_str().unwrap_or("device").to_uppercase();
    format!("{kind}{}", device["index"])
}

fn holders(device: &Value) -> String {
    let all: Vec<_> = device["holders"].as_array().into_iter().flatten().collect();
    let name = |holder: &&Value| {
        let claim = holder["claim"].as_str().map(|name| format!("claim {name}"));
        let pod = holder["pod"].as_str().map(str::to_owned);
        let over = if holder["overLimit"] == true { " (over its limit)" } else { "" };
        pod.or(claim).unwrap_or_else(|| "a container".to_owned()) + over
    };
    if all.is_empty() { "-".to_owned() } else { first_holders(all.iter().map(name)) }
}

/// The first holders of a device, and the number of the others.
pub(super) fn first_holders(all: impl ExactSizeIterator<Item = String>) -> String {
    let more = all.len().saturating_sub(HOLDERS_SHOWN);
    let more = (more > 0).then(|| format!("{more} more"));
    all.take(HOLDERS_SHOWN).chain(more).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_table_shows_load_memory_health_and_holders_in_eighty_columns() {
        let holder = |pod: &str| json!({"pod": pod});
        let state = json!({
            "simulated": true, "time": "2026-11-26T16:00:00Z",
            "summary": {"gpus": 2, "freeGpus": 0},
            "nodes": [{"name": "n", "devices": [
                {"kind": "gpu", "index": 0, "health": "healthy", "utilization": 0.934,
                 "memoryBytes": 85_899_345_920_u64, "memoryUsedBytes": 1_073_741_824_u64,
                 "temperatureCelsius": 54, "powerWatts": 412.0,
                 "holders": [holder("d/a"), holder("d/b"), holder("d/c"), holder("d/d")]},
                {"kind": "gpu", "index": 1, "health": "unhealthy", "reason": "XID 79", "action": "restart",
                 "holders": [{"claim": "d/c", "overLimit": true}, {}]},
            ]}],
        });
        let lines = picture(&state, Some(80));
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{lines:#?}");
        assert_eq!(
            lines,
            [
                "n, SIMULATED: 2 GPUs, 0 free, 2026-11-26T16:00:00Z",
                "DEVICE  LOAD  MEMORY        TEMP  POWER  HEALTH     HELD BY",
                "GPU0    93 %  1.0/80.0 GiB  54 C  412 W  healthy    d/a, d/b, d/c, 1 more",
                "GPU1    -     -             -     -      unhealthy  claim d/c (over its limit),…",
                "GPU1: XID 79; restart",
            ]
        );
    }

    #[test]
    fn a_document_of_another_shape_breaks_nothing() {
        for state in [json!({}), json!([]), json!({"nodes": [{"devices": [{"index": "x"}]}]})] {
            assert!(!picture(&state, Some(20)).is_empty(), "{state}");
        }
    }
}
