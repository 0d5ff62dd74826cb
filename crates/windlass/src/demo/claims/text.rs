//! Text form of the claims demo's events.

use std::collections::BTreeSet;

use super::{
    candidates::{NUMA_NODE, PCIE_ROOT},
    event::{ClaimEvent, PodRuns, Published},
};
use crate::{
    demo::report::{Render, Renderer, cdi_kinds, grant_items, waiting},
    screen::{Style, Table, pluralized, wrapped},
};

/// Attributes of the PRODUCT column.
const PRODUCTS: [&str; 3] = ["/productName", "/product", "/model"];

impl Render for ClaimEvent {
    fn lines(&self, render: Renderer) -> Vec<String> {
        match self {
            Self::Published { driver, devices, took_ms } => {
                published(render, driver, devices, *took_ms)
            }
            Self::Chapter { title } => render.heading(title),
            Self::PodRuns(runs) => pod_runs(render, runs),
            Self::NotScheduled { pod, asks, reason } => not_scheduled(render, pod, asks, reason),
            Self::NotShown { what, why } => {
                vec![String::new(), render.muted(format!("{what} is not shown: {why}"))]
            }
            Self::Fault { fault, .. } => {
                vec![format!("  {} {fault}", render.styled(Style::Warning, "!!"))]
            }
            Self::Withheld { device, taint, held_by, took_ms } => {
                withheld(render, device, taint.as_deref(), held_by, *took_ms)
            }
            Self::Waiting { device, end, quiet_ms } => waiting(device, end, *quiet_ms / 1000.0),
            Self::GivenAgain { device, took_ms } => {
                let untainted = render.styled(Style::Success, "without a taint");
                let elapsed = render.elapsed(*took_ms);
                vec![format!("  {} {device} is published {untainted} {elapsed}", render.ok())]
            }
            Self::KubeletRestarted { slices, claims, took_ms } => {
                let (slices, claims) = (pluralized(*slices, "slice"), pluralized(*claims, "claim"));
                let result = format!(
                    "the driver registered and {slices} published again; {claims} as before"
                );
                done(render, "The kubelet restarts and deletes every slice", &result, *took_ms)
            }
            Self::Republished { slices, devices, took_ms } => {
                let (slices, devices) =
                    (pluralized(*slices, "slice"), pluralized(*devices, "device"));
                let result = format!("{slices} with {devices} published again");
                done(render, "The slices are deleted", &result, *took_ms)
            }
            Self::Released { pods, claims, took_ms } => {
                let (pods, claims) = (pluralized(*pods, "pod"), pluralized(*claims, "claim"));
                let result = format!("{pods} and {claims} are gone, with their CDI documents");
                done(render, "All pods are deleted", &result, *took_ms)
            }
            Self::Finished { steps, pods, took_ms } => render.finished(*steps, *pods, *took_ms),
        }
    }
}

fn published(render: Renderer, driver: &str, devices: &[Published], took_ms: f64) -> Vec<String> {
    let mut lines = render.heading("Published for claims");
    let mut table = Table::new(["POOL", "NAME", "DEVICE", "TYPE", "PRODUCT", "NUMA", "PCIE ROOT"]);
    for device in devices {
        table.add_row(cells(device));
    }
    lines.extend(table.lines("  "));
    lines.push(String::new());
    let pools: BTreeSet<_> = devices.iter().map(|device| &device.pool).collect();
    let (devices, pools) = (pluralized(devices.len(), "device"), pluralized(pools.len(), "pool"));
    let elapsed = render.muted(format!("({took_ms:.1} ms after the agent started)"));
    lines.push(format!(
        "  {} {devices} in {pools}; the kubelet has the driver {driver} {elapsed}",
        render.ok()
    ));
    lines
}

fn cells(device: &Published) -> [String; 7] {
    let attribute = |name: &str| {
        let entry = device.attributes.iter().find(|(key, _)| key.ends_with(name));
        entry.map(|(_, value)| value.trim_matches('"').to_owned())
    };
    let product = PRODUCTS.iter().find_map(|name| attribute(name)).unwrap_or_default();
    [
        device.pool.clone(),
        device.name.clone(),
        shortened(&device.device),
        device.kind.clone(),
        product,
        attribute(NUMA_NODE).unwrap_or_default(),
        attribute(PCIE_ROOT).unwrap_or_default(),
    ]
}

/// Truncates a name to 16 characters, which identify the device.
fn shortened(name: &str) -> String {
    const LENGTH: usize = 16;
    match name.char_indices().nth(LENGTH) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

fn request_lines(render: Renderer, asks: &[String]) -> Vec<String> {
    let lines = asks.iter().flat_map(|text| wrapped("       asks  ", text.split_whitespace()));
    lines.map(|text| render.muted(text)).collect()
}

fn pod_runs(render: Renderer, runs: &PodRuns) -> Vec<String> {
    let (pod, elapsed) = (render.bold(&runs.pod), render.elapsed(runs.took_ms));
    let mut lines = vec![String::new(), format!("  {} pod {pod} runs {elapsed}", render.ok())];
    lines.extend(request_lines(render, &runs.asks));
    let mut requests: Vec<_> = runs.devices.iter().map(|device| device.request.as_str()).collect();
    requests.dedup();
    for request in requests {
        let devices = runs.devices.iter().filter(|device| device.request == request);
        let names: Vec<_> = devices.map(|device| device.name.as_str()).collect();
        lines.extend(wrapped(&format!("       {request}: "), names));
    }
    for container in &runs.containers {
        lines.extend(wrapped(
            &format!("         {}  gets  ", container.name),
            grant_items(&container.grant),
        ));
    }
    let kinds = runs.containers.first().map(|container| cdi_kinds(&container.grant.cdi_devices));
    let name = |(kind, names)| format!("{} of {kind}", pluralized(names, "CDI name"));
    let kinds: Vec<_> = kinds.into_iter().flatten().map(name).collect();
    lines.push(render.muted(format!("         by  {}", kinds.join(", "))));
    lines
}

fn not_scheduled(render: Renderer, pod: &str, requests: &[String], reason: &str) -> Vec<String> {
    let (ok, pod) = (render.ok(), render.bold(pod));
    let mut lines = vec![String::new(), format!("  {ok} pod {pod} waits, as expected")];
    lines.extend(request_lines(render, requests));
    let reason = wrapped("       ", reason.split_whitespace());
    lines.extend(reason.into_iter().map(|text| render.muted(text)));
    lines
}

/// Step with a heading and a result.
fn done(render: Renderer, title: &str, result: &str, took_ms: f64) -> Vec<String> {
    let mut lines = render.heading(title);
    lines.push(format!("  {} {result} {}", render.ok(), render.elapsed(took_ms)));
    lines
}

fn withheld(
    render: Renderer,
    device: &str,
    taint: Option<&str>,
    held_by: &str,
    took_ms: f64,
) -> Vec<String> {
    let state = taint.map_or_else(
        || "is no longer published".to_owned(),
        |taint| format!("has the taint {}", render.styled(Style::Error, taint)),
    );
    vec![
        format!("  {} {device} {state} {}", render.ok(), render.elapsed(took_ms)),
        format!("       pod {held_by} keeps running and shows it in its status"),
    ]
}
