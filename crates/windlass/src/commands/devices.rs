//! `windlass devices`: devices of this host with attributes, allocation and health.

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

pub(crate) use names::{is_named, name, name_prefix};
pub(crate) use table::{DeviceStatus, Width, device_tables};

use self::table::DeviceOffers;
use super::{
    clock, config_with_state_paths, group_by_reason, print_origin_notice, print_output,
    require_driver_answers,
};
use crate::{
    cli::{DeviceFilter, DevicesArgs, DevicesOutputArg, OutputArg},
    exit::UsageError,
    screen::{Paint, Style, print_line, wrapped},
};

pub(crate) async fn run(args: DevicesArgs) -> Result<()> {
    let has_kubelet_dir = args.state_paths.kubelet_dir.is_some();
    let config = config_with_state_paths(args.host, args.state_paths)?;
    let mut node = agent::scan_host(&config, clock()).await;
    let host = config.places.host();
    let mut offers = node.device_offers();
    let (mut owners, mut holders_unknown) = owners::owners(&config.places, &node).await;
    if !has_kubelet_dir {
        // The user names no kubelet, and the host may have none.
        holders_unknown.clear();
    }
    apply_filter(&mut node.inventory, &args.filter)?;
    offers.retain(|id, _| node.inventory.get(id.as_str()).is_some());
    owners.retain(|id, _| node.inventory.get(id.as_str()).is_some());
    let (output, width) = match args.output {
        DevicesOutputArg::Table => (OutputArg::Table, Width::Normal),
        DevicesOutputArg::Wide => (OutputArg::Table, Width::Wide),
        DevicesOutputArg::Json => (OutputArg::Json, Width::Normal),
        DevicesOutputArg::Yaml => (OutputArg::Yaml, Width::Normal),
    };
    let inventory = &node.inventory;
    let document = DevicesDocument {
        inventory,
        offerings: &offers,
        holders: &owners,
        lacks: &node.missing_parts.problems,
        holders_unknown: &holders_unknown,
        without_devices: &node.empty_resources,
    };
    let status = DeviceStatus { offers: &offers, owners: &owners };
    print_output(output, &document, || show(&node, status, &holders_unknown, &host, width))?;
    require_driver_answers(inventory)
}

/// Removes devices and sources that the filter excludes.
pub(super) fn apply_filter(inventory: &mut Inventory, filter: &DeviceFilter) -> Result<()> {
    let exists = |name: &&String| inventory.sources.contains_key(*name);
    if let Some(unknown) = filter.source.iter().find(|name| !exists(name)) {
        let names: Vec<_> = inventory.sources.keys().map(String::as_str).collect();
        let names = names.join(", ");
        return Err(
            UsageError(anyhow!("--source: unknown source {unknown:?}; known: {names}")).into()
        );
    }
    inventory.devices.retain(|device| filter.includes(device));
    inventory.sources.retain(|name, _| filter.includes_source(name));
    Ok(())
}

/// Output in JSON and YAML.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DevicesDocument<'a> {
    #[serde(flatten)]
    inventory: &'a Inventory,
    offerings: &'a DeviceOffers,
    /// Holders of each device, by API.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    holders: &'a Owners,
    /// Missing files of the driver, and missing configured files.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    lacks: &'a [String],
    /// Errors that make the holders incomplete.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    holders_unknown: &'a [String],
    /// Configured resources without devices, with the reason.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    without_devices: &'a BTreeMap<ResourceName, String>,
}

fn show(
    node: &NodeState,
    status: DeviceStatus<'_>,
    holders_unknown: &[String],
    host: &Host,
    width: Width,
) -> Result<()> {
    let inventory = &node.inventory;
    let paint = Paint::for_stdout();
    print_origin_notice(inventory, paint)?;
    source_lines(inventory, paint).into_iter().try_for_each(print_line)?;
    for table in device_tables(inventory, status, Some(host), width) {
        print_line("")?;
        table.print()?;
    }
    let notes = notes(node, status, holders_unknown);
    if !notes.is_empty() {
        print_line("")?;
    }
    notes.into_iter().map(|text| paint.styled(Style::Warning, text)).try_for_each(print_line)?;
    Ok(())
}

/// Lines below the tables, such as reasons why devices are withheld.
fn notes(node: &NodeState, status: DeviceStatus<'_>, holders_unknown: &[String]) -> Vec<String> {
    let empty = node.empty_resources.iter().flat_map(|(name, reason)| {
        let text = format!("{name} has no device on this node: {reason}");
        wrapped("", text.split_whitespace())
    });
    let missing = node.missing_parts.problems.iter().map(|problem| format!("note: {problem}"));
    let unknown = holders_unknown.iter().map(|reason| format!("note: holders unknown: {reason}"));
    // Missing files and unknown holders only matter if there are devices.
    let has_devices = !node.inventory.devices.is_empty();
    let incomplete = missing.chain(unknown).filter(|_| has_devices);
    let obstacles = obstacles(&node.inventory, status.offers).into_iter();
    let withheld =
        obstacles.chain(withheld_from_claims(node)).chain(held_by_other_api(node, status));
    withheld.chain(empty).chain(incomplete).collect()
}

/// Devices that one API withholds because the other has allocated them.
fn held_by_other_api(node: &NodeState, status: DeviceStatus<'_>) -> Vec<String> {
    let lines = |device: &Device| {
        let owners = status.owners.get(&device.id)?;
        let offer = status.offers.get(&device.id);
        let is_offered = offer.is_some_and(|offer| offer.resource.is_some());
        let note = owners.iter().find_map(|owner| match owner {
            Owner::Plugin(_) if node.is_claimable(&device.id) => Some(format!(
                "{} is withheld from claims: {owner} has it through the device plugin",
                name(device)
            )),
            Owner::Dra { .. } if is_offered => {
                Some(format!("{} is withheld from containers: held by {owner}", name(device)))
            }
            Owner::Plugin(_) | Owner::Dra { .. } => None,
        });
        note.map(|note| wrapped("", note.split_whitespace()))
    };
    node.inventory.devices.iter().filter_map(lines).flatten().collect()
}

/// One line per source: its state or its error.
pub(crate) fn source_lines(inventory: &Inventory, paint: Paint) -> Vec<String> {
    let width = inventory.sources.keys().map(String::len).max().unwrap_or(0);
    let text = |(name, state): (&String, &SourceState)| match state {
        SourceState::Starting => format!("{name:<width$}  did not answer in time"),
        SourceState::Ready(summary) => format!("{name:<width$}  {summary}"),
        SourceState::Absent(reason) => {
            format!("{name:<width$}  {}", paint.styled(Style::Muted, format!("none: {reason}")))
        }
        SourceState::Failing(reason) => {
            format!("{name:<width$}  {}", paint.styled(Style::Error, format!("failing: {reason}")))
        }
    };
    inventory.sources.iter().map(text).collect()
}

/// Obstacles of healthy devices, grouped by reason in the order of the table.
fn obstacles(inventory: &Inventory, offers: &DeviceOffers) -> Vec<String> {
    let healthy = inventory.devices.iter().filter(|device| device.health.is_healthy());
    let device_obstacles =
        healthy.filter_map(|device| Some((device, offers.get(&device.id)?.obstacle.as_deref()?)));
    sentences_by_reason("withheld", device_obstacles)
}

/// Devices that are withheld from claims although the configuration offers them.
fn withheld_from_claims(node: &NodeState) -> Vec<String> {
    let devices = node.inventory.devices.iter();
    let withheld_devices =
        devices.filter_map(|device| Some((device, node.unclaimable_reason(&device.id)?)));
    sentences_by_reason("withheld from claims", withheld_devices)
}

/// Sentences such as `GPU0 GPU1 are withheld: REASON`, one per reason. `predicate` follows the verb.
fn sentences_by_reason<'a>(
    predicate: &str,
    devices: impl Iterator<Item = (&'a Device, &'a str)>,
) -> Vec<String> {
    let sentence = |(reason, names): (&str, Vec<String>)| {
        let verb = if names.len() == 1 { "is" } else { "are" };
        let text = format!("{} {verb} {predicate}: {reason}", names.join(" "));
        wrapped("", text.split_whitespace())
    };
    group_by_reason(devices.map(|(device, reason)| (reason, name(device))))
        .into_iter()
        .flat_map(sentence)
        .collect()
}

/// Sorts devices in the order of the inventory.
pub(crate) fn sorted_by_inventory<'a>(
    devices: impl IntoIterator<Item = &'a Device>,
) -> Vec<&'a Device> {
    let mut devices: Vec<_> = devices.into_iter().collect();
    devices.sort_by(|a, b| a.sort_key().cmp(&b.sort_key()));
    devices
}
