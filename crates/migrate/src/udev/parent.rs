//! `ATTRS`, `DRIVERS`, `SUBSYSTEMS` and `KERNELS`: udev asks a device and all above it, and one of them has to
//! fit all.
//!
//! What is known here is the device itself, the nearest USB device, the nearest PCI function, and of a device
//! of a class what it is a part of. All keys of a rule have to be of one of these; of which, the keys say.

use windlass_config::Find;

use super::{
    line::{Operator, Term},
    pattern::{Absent, Pattern},
    query::Query,
    sysfs,
};
use crate::expression::{any, has};

/// Which of those above a key can only be of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Above {
    /// The USB device.
    Usb,
    /// An interface of it.
    Interface,
    /// The PCI function.
    Pci,
    /// Whichever has such a file, or driver.
    Any,
}

pub(super) fn ask(query: &mut Query, terms: &[&Term]) -> Result<(), String> {
    if let Some(term) = terms.iter().find(|term| term.operator != Operator::Fits) {
        return Err(format!(
            "{}!={:?} is so of almost everything: {NEGATED}",
            term.name(),
            term.value
        ));
    }
    let kinds: Vec<Above> = terms.iter().map(|term| above(term)).collect::<Result<_, _>>()?;
    let only = |meant: Above| kinds.iter().all(|kind| [meant, Above::Any].contains(kind));
    let has_kind = |kind: Above| kinds.contains(&kind);
    match &query.find {
        _ if kinds.is_empty() => Ok(()),
        _ if has_kind(Above::Usb) && only(Above::Usb) => of_usb(query, terms),
        _ if has_kind(Above::Pci) && only(Above::Pci) => of_pci(query, terms),
        _ if has_kind(Above::Interface) => of_interface(query, terms),
        _ if only(Above::Any) => of_any(query, terms),
        _ => Err(NEVER.to_owned()),
    }
}

fn above(term: &Term) -> Result<Above, String> {
    let file = term.of.as_deref().unwrap_or_default();
    let value = term.value.as_str();
    Ok(match term.key.as_str() {
        "ATTRS" if sysfs::is_of_interface(file) => Above::Interface,
        "ATTRS" if sysfs::is_usb_file(file) => Above::Usb,
        "ATTRS" if sysfs::is_pci_file(file, value) => Above::Pci,
        "SUBSYSTEMS" if value == "pci" => Above::Pci,
        "SUBSYSTEMS" | "DRIVERS" if value == "usb" => Above::Usb,
        "KERNELS" if value.split('|').all(sysfs::is_pci_address) => Above::Pci,
        "KERNELS" => return Err(format!("KERNELS=={value:?}: {PORTS}")),
        _ => Above::Any,
    })
}

/// The USB device that is found, or of which something is found.
fn of_usb(query: &mut Query, terms: &[&Term]) -> Result<(), String> {
    let mut is_asked = query.is_on("usb");
    for term in terms {
        let (pattern, file) = (Pattern::of(term)?, term.of.as_deref().unwrap_or_default());
        match term.key.as_str() {
            "SUBSYSTEMS" | "DRIVERS" if pattern.answer("usb") => continue,
            // The driver is of an interface then, and nothing else of what is asked may be.
            "DRIVERS" if terms.iter().all(|it| ["SUBSYSTEMS", "DRIVERS"].contains(&&*it.key)) => {
                if query.is_on("usb") {
                    query.driver_of_usb(&pattern)?;
                } else {
                    query.and(pattern.asked("driver", Absent::IsEmpty));
                }
                continue;
            }
            "ATTRS" if query.is_on("usb") => query.file(file, &pattern)?,
            "ATTRS" => match sysfs::of_usb(file) {
                Some(attribute) => query.and(pattern.asked(attribute, Absent::IsNothing)),
                None => {
                    return Err(format!("ATTRS{{{file}}} of the USB device: {}", of_device(file)));
                }
            },
            _ => return Err(NEVER.to_owned()),
        }
        is_asked = true;
    }
    if !is_asked {
        query.and(has("usbVendor"));
    }
    Ok(())
}

/// Why a file is not asked for where something of the device was found.
fn of_device(file: &str) -> &'static str {
    if sysfs::is_in_usb_folder(file) {
        "it is read only where that is found: write SUBSYSTEM==\"usb\""
    } else {
        "it has no such file"
    }
}

fn of_pci(query: &mut Query, terms: &[&Term]) -> Result<(), String> {
    let mut is_asked = query.is_on("pci");
    for term in terms {
        let (pattern, file) = (Pattern::of(term)?, term.of.as_deref().unwrap_or_default());
        match term.key.as_str() {
            "SUBSYSTEMS" if pattern.answer("pci") => continue,
            "DRIVERS" => query.and(pattern.asked("driver", Absent::IsEmpty)),
            "KERNELS" => query.and(pattern.asked(PCI_ADDRESS, Absent::IsEmpty)),
            "ATTRS" if query.is_on("pci") || sysfs::of_pci(file).is_some() => {
                query.file_of_pci(file, &pattern)?;
            }
            _ => return Err(format!("{}: not known of the PCI function above", term.name())),
        }
        is_asked = true;
    }
    if !is_asked {
        query.and(has("pciVendor"));
    }
    Ok(())
}

/// One interface, of which only the class is known, and only of all interfaces together.
fn of_interface(query: &mut Query, terms: &[&Term]) -> Result<(), String> {
    let mut of_file = terms.iter().filter(|term| term.key != "SUBSYSTEMS");
    match (of_file.next(), of_file.next()) {
        (Some(term), None) => {
            query.interface(term.of.as_deref().unwrap_or_default(), &Pattern::of(term)?)
        }
        _ => Err(NEVER.to_owned()),
    }
}

/// What may be of any: the device itself, or what it is a part of.
fn of_any(query: &mut Query, terms: &[&Term]) -> Result<(), String> {
    let drivers = terms.iter().filter(|term| term.key == "DRIVERS").count();
    match &query.find {
        _ if terms.iter().any(|term| !["DRIVERS", "ATTRS", "SUBSYSTEMS"].contains(&&*term.key)) => {
            let names: Vec<_> = terms.iter().map(|term| term.name()).collect();
            Err(format!("{}: only udev knows what its rules gave a device", names.join(", ")))
        }
        Find::Bus(bus) => {
            let bus = bus.clone();
            terms.iter().try_for_each(|term| of_found(query, &bus, term))
        }
        _ if terms.iter().any(|term| term.key == "SUBSYSTEMS") => Err(OTHER_SUBSYSTEM.to_owned()),
        _ if drivers == terms.len() => terms.iter().try_for_each(|term| {
            query.and(Pattern::of(term)?.asked("driver", Absent::IsEmpty));
            Ok(())
        }),
        _ if drivers > 0 => Err(NOT_TOGETHER.to_owned()),
        _ => of_part(query, terms),
    }
}

/// What is asked of a device of a bus itself.
fn of_found(query: &mut Query, bus: &str, term: &Term) -> Result<(), String> {
    let pattern = Pattern::of(term)?;
    match term.key.as_str() {
        "SUBSYSTEMS" if pattern.answer(bus) => Ok(()),
        "SUBSYSTEMS" => Err(OTHER_SUBSYSTEM.to_owned()),
        "DRIVERS" if bus == "usb" => query.driver_of_usb(&pattern),
        "DRIVERS" => {
            query.and(pattern.asked("driver", Absent::IsEmpty));
            Ok(())
        }
        _ => query.file(term.of.as_deref().unwrap_or_default(), &pattern),
    }
}

/// Files of a device of a class, or all of them of what it is a part of, or of the USB device above.
fn of_part(query: &mut Query, terms: &[&Term]) -> Result<(), String> {
    let asked: Vec<(&str, Pattern)> = terms
        .iter()
        .map(|term| Ok((term.of.as_deref().unwrap_or_default(), Pattern::of(term)?)))
        .collect::<Result<_, String>>()?;
    let mut ways = Vec::new();
    for folder in ["", "device/"] {
        let files = asked.iter().map(|(file, pattern)| query.read(file, folder, pattern));
        ways.push(files.collect::<Result<Vec<_>, _>>()?.join(" && "));
    }
    let of_usb = |(file, pattern): &(&str, Pattern)| {
        Some(pattern.asked(sysfs::of_usb(file)?, Absent::IsNothing))
    };
    let of_usb: Option<Vec<_>> = asked.iter().map(of_usb).collect();
    ways.extend(of_usb.map(|all| all.join(" && ")));
    query.and(any(&ways));
    query.notes.push(NO_FURTHER);
    Ok(())
}

const PCI_ADDRESS: &str = "resource.kubernetes.io/pciBusID";

const NEGATED: &str = "udev asks each device above. Write == or ATTR";

const NEVER: &str = "no one device above has all that ATTRS, DRIVERS, SUBSYSTEMS and KERNELS ask for, as \
    they have to of one";

const PORTS: &str =
    "names on buses have numbers that change: write usbPort or the PCI address in match";

const OTHER_SUBSYSTEM: &str = "SUBSYSTEMS: of what is above only usb and pci are known";

const NOT_TOGETHER: &str = "DRIVERS and ATTRS: which device above has both is not known";

const NO_FURTHER: &str = "ATTRS is asked of the device, of what it is a part of, and of the USB device, but of \
    nothing else above";
