//! `windlass devices`: what this host has.

mod ids;
mod names;
mod product;
mod table;

use std::collections::BTreeMap;

use anyhow::{Result, anyhow};
use serde::Serialize;
use windlass_core::{
    device::Device,
    inventory::{Inventory, SourceState},
    resource::ResourceName,
};
use windlass_host::Host;
use windlass_node::{
    agent,
    owners::{self, Owner, Owners},
};
use windlass_resources::NodeState;

pub(crate) use names::{goes_by, name, series};
pub(crate) use table::{Known, Width, device_tables};

use self::table::Offerings;
use super::{answer, answered, clock, recorded_config, simulated};
use crate::{
    cli::{DevicesArgs, DevicesOutputArg, OutputArg, Which},
    exit::Misuse,
    screen::{Paint, Tone, line, wrapped},
};

pub(super) async fn run(args: DevicesArgs) -> Result<()> {
    let is_asked = args.record.kubelet_dir.is_some();
    let config = recorded_config(args.host, args.record)?;
    let mut node = agent::survey(&config, clock()).await;
    let host = config.places.host();
    let mut offerings = node.offerings();
    let (mut owners, mut caveats) = owners::owners(&config.places, &node).await;
    // A host without a kubelet is none that somebody asked about.
    caveats.retain(|_| is_asked);
    narrow(&mut node.inventory, &args.which)?;
    offerings.retain(|id, _| node.inventory.get(id.as_str()).is_some());
    owners.retain(|id, _| node.inventory.get(id.as_str()).is_some());
    let (output, width) = match args.output {
        DevicesOutputArg::Table => (OutputArg::Table, Width::Usual),
        DevicesOutputArg::Wide => (OutputArg::Table, Width::Wide),
        DevicesOutputArg::Json => (OutputArg::Json, Width::Usual),
        DevicesOutputArg::Yaml => (OutputArg::Yaml, Width::Usual),
    };
    node.lacks.troubles.extend(caveats.into_iter().map(|why| format!("who holds what: {why}")));
    let inventory = &node.inventory;
    let lacks = node.lacks.troubles.as_slice();
    let (without_devices, holders) = (&node.empty, &owners);
    let document = Document { inventory, offerings: &offerings, holders, lacks, without_devices };
    let known = Known { offerings: &offerings, owners: &owners };
    answer(output, &document, || show(&node, known, (&host, width)))?;
    answered(inventory)
}

/// Leaves those devices that were asked for.
pub(super) fn narrow(inventory: &mut Inventory, which: &Which) -> Result<()> {
    let known = |name: &&String| inventory.sources.contains_key(*name);
    if let Some(unknown) = which.source.iter().find(|name| !known(name)) {
        let names: Vec<_> = inventory.sources.keys().map(String::as_str).collect();
        let there = names.join(", ");
        return Err(Misuse(anyhow!(
            "--source: no source is called {unknown:?}; there are {there}"
        ))
        .into());
    }
    inventory.devices.retain(|device| which.includes(device));
    inventory.sources.retain(|name, _| which.speaks_of(name));
    Ok(())
}

/// The answer for programs.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    #[serde(flatten)]
    inventory: &'a Inventory,
    offerings: &'a Offerings,
    /// Who has what, and through which of the kubelet's two ways.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    holders: &'a Owners,
    /// What containers go without.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    lacks: &'a [String],
    /// Resources of the configuration that no device is for, and why.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    without_devices: &'a BTreeMap<ResourceName, String>,
}

fn show(node: &NodeState, known: Known<'_>, (host, width): (&Host, Width)) -> Result<()> {
    let inventory = &node.inventory;
    let paint = Paint::for_stdout();
    simulated(inventory, paint)?;
    sources(inventory, paint).into_iter().try_for_each(line)?;
    for table in device_tables(inventory, known, Some(host), width) {
        line("")?;
        table.lines("").into_iter().try_for_each(line)?;
    }
    let notes = notes(node, known);
    if !notes.is_empty() {
        line("")?;
    }
    notes.into_iter().map(|text| paint.text(Tone::Notable, text)).try_for_each(line)?;
    Ok(())
}

/// What a table has no column for.
fn notes(node: &NodeState, known: Known<'_>) -> Vec<String> {
    let empty = node.empty.iter().flat_map(|(name, why)| {
        let text = format!("{name} gets no device of this node: {why}");
        wrapped("", text.split_whitespace())
    });
    // Where nothing is handed out nobody goes without.
    let lacks = node.lacks.troubles.iter().filter(|_| !node.inventory.devices.is_empty());
    let lacks = lacks.map(|what| format!("note: {what}"));
    let obstacles = obstacles(&node.inventory, known.offerings).into_iter();
    let told = obstacles.chain(for_no_claim(node)).chain(other_way(node, known));
    told.chain(empty).chain(lacks).collect()
}

/// Why a device is offered in the one of the kubelet's two ways only: it was given away in the other.
fn other_way(node: &NodeState, known: Known<'_>) -> Vec<String> {
    let told = |device: &Device| {
        let owners = known.owners.get(&device.id)?;
        let offering = known.offerings.get(&device.id);
        let is_offered = offering.is_some_and(|it| it.resource.is_some());
        let why = owners.iter().find_map(|owner| match owner {
            Owner::Plugin(_) if node.is_claimable(&device.id) => Some(format!(
                "{} is for no claim now: {owner} has it through the device plugin",
                name(device)
            )),
            Owner::Dra { .. } if is_offered => {
                Some(format!("{} is for no container now: held by {owner}", name(device)))
            }
            Owner::Plugin(_) | Owner::Dra { .. } => None,
        });
        why.map(|why| wrapped("", why.split_whitespace()))
    };
    node.inventory.devices.iter().filter_map(told).flatten().collect()
}

/// One line for each source: what it found, or why not.
pub(crate) fn sources(inventory: &Inventory, paint: Paint) -> Vec<String> {
    let width = inventory.sources.keys().map(String::len).max().unwrap_or(0);
    let text = |(name, state): (&String, &SourceState)| match state {
        SourceState::Starting => format!("{name:<width$}  did not answer in time"),
        SourceState::Ready(what) => format!("{name:<width$}  {what}"),
        SourceState::Absent(why) => {
            format!("{name:<width$}  {}", paint.text(Tone::Quiet, format!("none: {why}")))
        }
        SourceState::Failing(why) => {
            format!("{name:<width$}  {}", paint.text(Tone::Bad, format!("failing: {why}")))
        }
    };
    inventory.sources.iter().map(text).collect()
}

/// Why healthy devices are not handed out: the reasons in the order of the table, and whom each holds for.
fn obstacles(inventory: &Inventory, offerings: &Offerings) -> Vec<String> {
    let healthy = inventory.devices.iter().filter(|device| device.health.is_healthy());
    let kept_back = healthy
        .filter_map(|device| Some((device, offerings.get(&device.id)?.obstacle.as_deref()?)));
    by_reason("not handed out", kept_back)
}

/// Why claims cannot have devices that they would have by the configuration.
fn for_no_claim(node: &NodeState) -> Vec<String> {
    let devices = node.inventory.devices.iter();
    let kept = devices.filter_map(|device| Some((device, node.not_for_claims(&device.id)?)));
    by_reason("for no claim", kept)
}

/// What is so of devices for the same reason is one text.
fn by_reason<'a>(what: &str, devices: impl Iterator<Item = (&'a Device, &'a str)>) -> Vec<String> {
    let mut reasons: Vec<(&str, Vec<String>)> = Vec::new();
    for (device, why) in devices {
        match reasons.iter_mut().find(|(known, _)| *known == why) {
            Some((_, names)) => names.push(name(device)),
            None => reasons.push((why, vec![name(device)])),
        }
    }
    let told = |(why, names): (&str, Vec<String>)| {
        let verb = if names.len() == 1 { "is" } else { "are" };
        let text = format!("{} {verb} {what}: {why}", names.join(" "));
        wrapped("", text.split_whitespace())
    };
    reasons.into_iter().flat_map(told).collect()
}

/// Devices in the inventory's order.
pub(crate) fn ordered<'a>(devices: impl IntoIterator<Item = &'a Device>) -> Vec<&'a Device> {
    let mut devices: Vec<_> = devices.into_iter().collect();
    devices.sort_by(|a, b| a.order().cmp(&b.order()));
    devices
}
