//! Where the devices of a rule are looked for.

use windlass_config::Find;
use windlass_host::glob::is_pattern;

use super::{
    Left,
    line::{Operator, Term},
    pattern::Pattern,
    sysfs::{is_pci_address, is_pci_file, is_usb_file, of_usb_property},
};

/// Subsystems that are buses; all others are classes.
const BUSES: [&str; 44] = [
    "acpi",
    "amba",
    "ap",
    "auxiliary",
    "bcma",
    "ccw",
    "cdx",
    "coresight",
    "counter",
    "cxl",
    "dax",
    "dfl",
    "event_source",
    "firewire",
    "fsl-mc",
    "gpio",
    "greybus",
    "hid",
    "i2c",
    "i3c",
    "iio",
    "mdev",
    "media",
    "mei",
    "mmc",
    "nd",
    "nvmem",
    "pci",
    "platform",
    "pnp",
    "rapidio",
    "rpmsg",
    "scsi",
    "sdio",
    "serial",
    "serio",
    "slimbus",
    "soundwire",
    "spi",
    "ssb",
    "thunderbolt",
    "usb",
    "usb-serial",
    "vdpa",
];

/// Subsystems that a source has nothing to give of, and why.
const NO_DEVICES: [(&str, &str); 3] = [
    ("net", "interfaces are offered without a source: write a rule of resources with kind: nic"),
    ("module", "a module is no device"),
    ("drivers", "a driver is no device"),
];

/// Folders below `/dev` of nodes whose name says nothing of it, by how the kernel's names begin.
const FOLDERS: [(&str, &str); 13] = [
    ("event", "input"),
    ("mouse", "input"),
    ("js", "input"),
    ("controlC", "snd"),
    ("pcmC", "snd"),
    ("midiC", "snd"),
    ("hwC", "snd"),
    ("card", "dri"),
    ("renderD", "dri"),
    ("uverbs", "infiniband"),
    ("umad", "infiniband"),
    ("issm", "infiniband"),
    ("tun", "net"),
];

/// Every place where something is that may fit.
pub(super) fn places(terms: &[&Term]) -> Result<Vec<Find>, Left> {
    let fits = |key: &str| {
        terms.iter().find(|term| term.key == key && term.operator == Operator::Fits).copied()
    };
    if let Some(subsystem) = fits("SUBSYSTEM") {
        return of_subsystem(subsystem);
    }
    if let Some(kernel) = fits("KERNEL") {
        let pattern = Pattern::of(kernel).map_err(Left::Because)?;
        if pattern.alternatives().iter().all(|it| is_pci_address(it)) {
            return Ok(vec![Find::Bus("pci".to_owned())]);
        }
        let nodes: Result<_, String> = pattern.alternatives().iter().map(|it| node(it)).collect();
        return Ok(vec![Find::Nodes(nodes.map_err(Left::Because)?)]);
    }
    let buses = terms.iter().filter(|term| term.operator == Operator::Fits);
    let bus = buses.clone().find_map(|term| bus_of(term));
    let bus = bus.ok_or_else(|| Left::Because(NOWHERE.to_owned()))?;
    Ok(vec![Find::Bus(bus)])
}

fn of_subsystem(term: &Term) -> Result<Vec<Find>, Left> {
    let pattern = Pattern::of(term).map_err(Left::Because)?;
    let names = pattern.literals().ok_or_else(|| {
        Left::Because(format!(
            "SUBSYSTEM=={:?} may be several: name them, with | between",
            term.value
        ))
    })?;
    let mut found = Vec::new();
    for name in names {
        if let Some((_, why)) = NO_DEVICES.iter().find(|(other, _)| other == name) {
            return Err(Left::Because(format!("SUBSYSTEM=={name:?}: {why}")));
        }
        found.push(find(name));
    }
    Ok(found)
}

fn find(subsystem: &str) -> Find {
    let name = subsystem.to_owned();
    if BUSES.contains(&subsystem) { Find::Bus(name) } else { Find::Class(name) }
}

/// The bus of what a term asks for, where nothing says it.
fn bus_of(term: &Term) -> Option<String> {
    let value = term.value.as_str();
    let bus = match (term.key.as_str(), term.of.as_deref().unwrap_or_default()) {
        ("SUBSYSTEMS", _) if BUSES.contains(&value) => value,
        ("KERNELS", _) if is_pci_address(value) => "pci",
        ("ATTR" | "ATTRS", file) if is_usb_file(file) => "usb",
        ("ATTR" | "ATTRS", file) if is_pci_file(file, value) => "pci",
        ("ENV", "PCI_ID" | "PCI_CLASS" | "PCI_SUBSYS_ID") => "pci",
        ("ENV", "DEVTYPE") if value == "usb_device" => "usb",
        ("ENV", property) if of_usb_property(property).is_some() && !value.starts_with("0x") => {
            "usb"
        }
        _ => return None,
    };
    Some(bus.to_owned())
}

/// Where the node of a device with such a name is: at least as much as that fits, for the name is asked too.
fn node(name: &str) -> Result<String, String> {
    let open = name.find(['*', '?', '[', '\\']).unwrap_or(name.len());
    let (begin, rest) = name.split_at(open);
    if begin.is_empty() {
        return Err(format!("KERNEL=={name:?} says nothing of where to look: add SUBSYSTEM"));
    }
    let rest = if rest.contains(['[', '\\']) { "*" } else { rest };
    let folder = FOLDERS.iter().find(|(prefix, _)| begin.starts_with(prefix));
    let folder = folder.map_or(String::new(), |(_, folder)| format!("{folder}/"));
    // The kernel writes ! where a name has a /.
    Ok(format!("/dev/{folder}{begin}{rest}").replace('!', "/"))
}

/// Whether a pattern of nodes fits one node alone, which a name then says nothing more of.
pub(super) fn is_exact(find: &Find) -> bool {
    matches!(find, Find::Nodes(patterns) if !patterns.iter().any(|pattern| is_pattern(pattern)))
}

/// The subsystem of all that is found.
pub(super) fn subsystem(find: &Find) -> Option<&str> {
    match find {
        Find::Bus(name) | Find::Class(name) => Some(name),
        Find::Nodes(_) | Find::Files(_) | Find::Endpoints(_) => None,
    }
}

const NOWHERE: &str = "nothing says where to look: add SUBSYSTEM, or KERNEL";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_the_kernel_leads_to_its_node() {
        for (name, expected) in [
            ("ttyUSB*", "/dev/ttyUSB*"),
            ("video[0-9]*", "/dev/video*"),
            ("event?", "/dev/input/event?"),
            ("renderD128", "/dev/dri/renderD128"),
            ("cciss!c0d0", "/dev/cciss/c0d0"),
        ] {
            assert_eq!(node(name).expect(name), expected);
        }
        assert!(node("*").is_err());
    }
}
