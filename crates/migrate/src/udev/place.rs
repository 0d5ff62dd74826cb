//! Places of a rule's devices: buses, classes and device nodes.

use windlass_config::DiscoveryRule;

use super::line::Term;
use crate::names::is_made_of;

/// Subsystems that are buses; all others are classes.
const BUSES: &str = "acpi amba ap auxiliary bcma ccw cdx coresight counter cxl dax dfl event_source firewire \
    fsl-mc gpio greybus hid i2c i3c iio mdev media mei mmc nd nvmem pci platform pnp rapidio rpmsg scsi sdio \
    serial serio slimbus soundwire spi ssb thunderbolt usb usb-serial vdpa";

/// Folders below `/dev`, each with the prefix of the kernel's names for its nodes.
const FOLDERS: &str = "input/event input/mouse input/js snd/controlC snd/pcmC snd/midiC snd/hwC dri/card \
    dri/renderD infiniband/uverbs infiniband/umad infiniband/issm net/tun";

/// All places that may have a matching device.
pub(super) fn places(terms: &[Term<'_>]) -> Result<Vec<DiscoveryRule>, String> {
    let equality_terms =
        |key| terms.iter().filter(move |term| term.key == key && term.operator == "==");
    let (mut subsystems, mut kernels) = (equality_terms("SUBSYSTEM"), equality_terms("KERNEL"));
    let is_usb_id = |term: &Term<'_>| matches!(term.argument, Some("idVendor" | "idProduct"));
    match (subsystems.next(), subsystems.next(), kernels.next()) {
        (Some(_), Some(_), _) => Err("SUBSYSTEM appears twice".to_owned()),
        (Some(subsystem), None, _) => subsystem.value.split('|').map(of_subsystem).collect(),
        (None, _, Some(kernel)) => {
            let nodes: Result<_, String> = kernel.value.split('|').map(node).collect();
            Ok(vec![DiscoveryRule::Nodes(nodes?)])
        }
        _ if terms.iter().any(is_usb_id) => Ok(vec![DiscoveryRule::Bus("usb".to_owned())]),
        _ => Err("the rule does not say where to search: add SUBSYSTEM, or KERNEL".to_owned()),
    }
}

fn of_subsystem(name: &str) -> Result<DiscoveryRule, String> {
    match name {
        "net" => Err("SUBSYSTEM: write a rule of resources with kind: nic".to_owned()),
        _ if !is_made_of(name, b"-_") => Err(format!("SUBSYSTEM: {name:?}: name each, with |")),
        _ if BUSES.split(' ').any(|bus| bus == name) => Ok(DiscoveryRule::Bus(name.to_owned())),
        _ => Ok(DiscoveryRule::Class(name.to_owned())),
    }
}

/// Path pattern of a device node by its name. It may match other nodes too, because the rule also tests the name.
fn node(name: &str) -> Result<String, String> {
    let (stem, rest) = name.split_at(name.find(['*', '?', '[']).unwrap_or(name.len()));
    if !stem.starts_with(|first: char| first.is_ascii_alphabetic()) {
        return Err(format!("KERNEL: {name:?} does not say where to search: add SUBSYSTEM"));
    }
    let rest = if rest.contains('[') { "*" } else { rest };
    let mut folders = FOLDERS.split(' ').filter_map(|it| it.split_once('/'));
    let folder = folders.find(|(_, prefix)| stem.starts_with(prefix));
    let folder = folder.map_or(String::new(), |(folder, _)| format!("{folder}/"));
    Ok(format!("/dev/{folder}{stem}{rest}"))
}
