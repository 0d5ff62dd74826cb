//! The people's words for the story of claims; the functions return lines.

use std::collections::BTreeSet;

use super::{
    event::{Event, PodRuns, Published},
    ground::{NUMA_NODE, PCIE_ROOT},
};
use crate::{
    demo::tell::{Tell, Words, cdi_kinds, gets, waiting},
    screen::{Table, Tone, count, wrapped},
};

/// What the table of devices shows of them beside where they are.
const PRODUCTS: [&str; 3] = ["/productName", "/product", "/model"];

impl Tell for Event {
    fn lines(&self, words: Words) -> Vec<String> {
        match self {
            Self::Published { driver, devices, took_ms } => {
                published(words, (driver, devices), *took_ms)
            }
            Self::Chapter { title } => words.heading(title),
            Self::PodRuns(runs) => pod_runs(words, runs),
            Self::NotScheduled { pod, asks, reason } => not_scheduled(words, (pod, asks), reason),
            Self::NotShown { what, why } => {
                vec![String::new(), words.quiet(format!("{what} is not shown: {why}"))]
            }
            Self::Fault { fault, .. } => {
                vec![format!("  {} {fault}", words.tone(Tone::Notable, "!!"))]
            }
            Self::Withheld { device, taint, held_by, took_ms } => {
                withheld(words, (device, taint.as_deref(), held_by), *took_ms)
            }
            Self::Waiting { device, end, quiet_ms } => waiting(device, end, *quiet_ms / 1000.0),
            Self::GivenAgain { device, took_ms } => {
                let well = words.tone(Tone::Good, "without a taint");
                let took = words.took(*took_ms);
                vec![format!("  {} {device} is published {well} {took}", words.ok())]
            }
            Self::KubeletRestarted { slices, claims, took_ms } => {
                let (slices, claims) = (count(*slices, "slice"), count(*claims, "claim"));
                let came = format!(
                    "the driver registered and {slices} published again; {claims} as before"
                );
                done(words, ("The kubelet restarts and deletes every slice", &came), *took_ms)
            }
            Self::Republished { slices, devices, took_ms } => {
                let (slices, devices) = (count(*slices, "slice"), count(*devices, "device"));
                let came = format!("{slices} with {devices} published again");
                done(words, ("Somebody deletes the slices", &came), *took_ms)
            }
            Self::Released { pods, claims, took_ms } => {
                let (pods, claims) = (count(*pods, "pod"), count(*claims, "claim"));
                let came = format!("{pods} and {claims} are gone; no CDI document is left of them");
                done(words, ("All pods are deleted", &came), *took_ms)
            }
            Self::Finished { steps, pods, took_ms } => words.finished(*steps, *pods, *took_ms),
        }
    }
}

fn published(words: Words, (driver, devices): (&str, &[Published]), took_ms: f64) -> Vec<String> {
    let mut lines = words.heading("Published for claims");
    let mut table = Table::new(["POOL", "NAME", "DEVICE", "TYPE", "PRODUCT", "NUMA", "PCIE ROOT"]);
    for device in devices {
        table.row(cells(device));
    }
    lines.extend(table.lines("  "));
    lines.push(String::new());
    let pools: BTreeSet<_> = devices.iter().map(|device| &device.pool).collect();
    let (devices, pools) = (count(devices.len(), "device"), count(pools.len(), "pool"));
    let when = words.quiet(format!("({took_ms:.1} ms after the agent started)"));
    lines.push(format!(
        "  {} {devices} in {pools}; the kubelet has the driver {driver} {when}",
        words.ok()
    ));
    lines
}

fn cells(device: &Published) -> [String; 7] {
    let of = |name: &str| {
        let found = device.attributes.iter().find(|(known, _)| known.ends_with(name));
        found.map(|(_, value)| value.trim_matches('"').to_owned())
    };
    let product = PRODUCTS.iter().find_map(|name| of(name)).unwrap_or_default();
    [
        device.pool.clone(),
        device.name.clone(),
        shortened(&device.device),
        device.kind.clone(),
        product,
        of(NUMA_NODE).unwrap_or_default(),
        of(PCIE_ROOT).unwrap_or_default(),
    ]
}

/// The beginning tells one device from another.
fn shortened(name: &str) -> String {
    const ENOUGH: usize = 16;
    match name.char_indices().nth(ENOUGH) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

fn asks(words: Words, asks: &[String]) -> Vec<String> {
    let lines = asks.iter().flat_map(|text| wrapped("       asks  ", text.split_whitespace()));
    lines.map(|text| words.quiet(text)).collect()
}

fn pod_runs(words: Words, runs: &PodRuns) -> Vec<String> {
    let (pod, took) = (words.strong(&runs.pod), words.took(runs.took_ms));
    let mut lines = vec![String::new(), format!("  {} pod {pod} runs {took}", words.ok())];
    lines.extend(asks(words, &runs.asks));
    let mut requests: Vec<_> = runs.devices.iter().map(|it| it.request.as_str()).collect();
    requests.dedup();
    for request in requests {
        let devices = runs.devices.iter().filter(|it| it.request == request);
        let names: Vec<_> = devices.map(|it| it.name.as_str()).collect();
        lines.extend(wrapped(&format!("       {request}: "), names));
    }
    for container in &runs.containers {
        lines.extend(wrapped(
            &format!("         {}  gets  ", container.name),
            gets(&container.gets),
        ));
    }
    let kinds = runs.containers.first().map(|it| cdi_kinds(&it.gets.cdi_devices));
    let name = |(kind, names)| format!("{} of {kind}", count(names, "CDI name"));
    let kinds: Vec<_> = kinds.into_iter().flatten().map(name).collect();
    lines.push(words.quiet(format!("         by  {}", kinds.join(", "))));
    lines
}

fn not_scheduled(words: Words, (pod, wish): (&str, &[String]), reason: &str) -> Vec<String> {
    let (ok, pod) = (words.ok(), words.strong(pod));
    let mut lines = vec![String::new(), format!("  {ok} pod {pod} waits, as it has to")];
    lines.extend(asks(words, wish));
    let reason = wrapped("       ", reason.split_whitespace());
    lines.extend(reason.into_iter().map(|text| words.quiet(text)));
    lines
}

/// A step that is a heading and what came of it.
fn done(words: Words, (title, came): (&str, &str), took_ms: f64) -> Vec<String> {
    let mut lines = words.heading(title);
    lines.push(format!("  {} {came} {}", words.ok(), words.took(took_ms)));
    lines
}

fn withheld(
    words: Words,
    (device, taint, held_by): (&str, Option<&str>, &str),
    took_ms: f64,
) -> Vec<String> {
    let is_so = taint.map_or_else(
        || "is not published any more".to_owned(),
        |taint| format!("has the taint {}", words.tone(Tone::Bad, taint)),
    );
    vec![
        format!("  {} {device} {is_so} {}", words.ok(), words.took(took_ms)),
        format!("       pod {held_by} goes on and shows it in its status"),
    ]
}
