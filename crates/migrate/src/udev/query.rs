//! What a rule asks of a device, as an expression over its attributes and the files that some of these are
//! read from.

use std::{collections::BTreeMap, path::PathBuf};

use windlass_config::Find;
use windlass_core::{
    attribute::AttributeName,
    selector::{DeviceExpression, InvalidExpression},
};

use super::{
    Left,
    line::{Operator, Term},
    parent,
    pattern::{Absent, Pattern},
    place::{is_exact, subsystem},
    sysfs,
};
use crate::expression::{All, any, has};

/// What is asked of the devices of one place.
#[derive(Debug)]
pub(super) struct Query {
    pub(super) find: Find,
    all: All,
    /// The files, by the attribute that each becomes.
    pub(super) attributes: BTreeMap<AttributeName, PathBuf>,
    /// What is to be said of it.
    pub(super) notes: Vec<&'static str>,
}

/// A query that is ready to be a source.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) find: Find,
    pub(super) expression: Option<DeviceExpression>,
    pub(super) attributes: BTreeMap<AttributeName, PathBuf>,
    pub(super) notes: Vec<&'static str>,
}

/// Keys of which udev asks every device above too, one of which has to fit all of them.
const OF_PARENTS: [&str; 4] = ["KERNELS", "SUBSYSTEMS", "DRIVERS", "ATTRS"];

/// Attributes that every source has, and a file gives its name to no other.
const TAKEN: [&str; 12] = [
    "name",
    "subsystem",
    "driver",
    "devName",
    "path",
    "ofCompatible",
    "iommuGroup",
    "acpiIndex",
    "isSriovVf",
    "sriovVfs",
    "port",
    "host",
];

/// All that is asked, of devices in one place.
pub(super) fn ask(find: Find, terms: &[&Term]) -> Result<Asked, Left> {
    let (all, attributes, notes) = Default::default();
    let mut query = Query { find, all, attributes, notes };
    let (above, own): (Vec<_>, Vec<_>) =
        terms.iter().partition(|term| OF_PARENTS.contains(&term.key.as_str()));
    for term in own {
        query.own(term)?;
    }
    parent::ask(&mut query, &above).map_err(Left::Because)?;
    query.into_asked()
}

// === impl Query ===

impl Query {
    /// Adds what has to hold too.
    pub(super) fn and(&mut self, condition: String) {
        if condition != "true" {
            self.all.and(condition);
        }
    }

    /// Whether devices of a bus are found.
    pub(super) fn is_on(&self, bus: &str) -> bool {
        matches!(&self.find, Find::Bus(name) if name == bus)
    }

    fn own(&mut self, term: &Term) -> Result<(), Left> {
        let of = term.of.as_deref().unwrap_or_default();
        let because = |problem: String| Left::Because(problem);
        match term.key.as_str() {
            "SUBSYSTEM" => return self.subsystem(term),
            "KERNEL" => self.kernel(&Pattern::of(term).map_err(because)?),
            "DRIVER" => self.driver(term).map_err(because)?,
            "ATTR" => self.file(of, &Pattern::of(term).map_err(because)?).map_err(because)?,
            "ENV" => self.property(of, term)?,
            _ => return Err(Left::Because(unknown(term))),
        }
        Ok(())
    }

    /// What is found has one subsystem, unless nodes are looked for.
    fn subsystem(&mut self, term: &Term) -> Result<(), Left> {
        let pattern = Pattern::of(term).map_err(Left::Because)?;
        match subsystem(&self.find) {
            Some(name) if !pattern.answer(name) => return Err(Left::Never),
            Some(_) => {}
            None => self.and(pattern.asked("subsystem", Absent::IsEmpty)),
        }
        Ok(())
    }

    fn kernel(&mut self, pattern: &Pattern) {
        let is_found = is_exact(&self.find) && pattern.operator() == Operator::Fits;
        if !is_found {
            self.and(pattern.asked("name", Absent::IsEmpty));
        }
    }

    /// What is plugged in has the drivers of its interfaces.
    fn driver(&mut self, term: &Term) -> Result<(), String> {
        let pattern = Pattern::of(term)?;
        match &self.find {
            Find::Class(class) => Err(format!(
                "DRIVER: a device of class {class} has none: write DRIVERS, which asks what it is a part of"
            )),
            _ if self.is_on("usb") => self.driver_of_usb(&pattern),
            _ => {
                self.and(pattern.asked("driver", Absent::IsEmpty));
                Ok(())
            }
        }
    }

    pub(super) fn driver_of_usb(&mut self, pattern: &Pattern) -> Result<(), String> {
        match (pattern.operator(), pattern.answer("usb")) {
            (_, true) => {}
            (Operator::Fits, false) => self.and(pattern.asked_of_words("driver")),
            _ => return Err(ONE_INTERFACE.to_owned()),
        }
        Ok(())
    }

    /// A file in the device's own folder.
    pub(super) fn file(&mut self, file: &str, pattern: &Pattern) -> Result<(), String> {
        if sysfs::is_of_interface(file) {
            return self.interface(file, pattern);
        }
        let known = match &self.find {
            Find::Bus(bus) if bus == "usb" => sysfs::of_usb(file),
            Find::Bus(bus) if bus == "pci" => return self.file_of_pci(file, pattern),
            _ if sysfs::is_usb_file(file) => {
                return Err(format!("ATTR{{{file}}} is of the USB device: write ATTRS{{{file}}}"));
            }
            _ => None,
        };
        let condition = match known {
            Some(attribute) => pattern.asked(attribute, Absent::IsNothing),
            None => self.read(file, "", pattern)?,
        };
        self.and(condition);
        Ok(())
    }

    /// An interface of what is plugged in; of a device that is one, or a part of one, that alone is not known.
    pub(super) fn interface(&mut self, file: &str, pattern: &Pattern) -> Result<(), String> {
        if file != "bInterfaceClass" || pattern.operator() != Operator::Fits || !self.is_on("usb") {
            return Err(format!("{file}: {ONE_INTERFACE}"));
        }
        self.and(pattern.asked_of_words("usbInterfaceClass"));
        Ok(())
    }

    pub(super) fn file_of_pci(&mut self, file: &str, pattern: &Pattern) -> Result<(), String> {
        let condition = match sysfs::of_pci(file) {
            Some(attribute) => {
                let number = pattern.mapped(|value| sysfs::pci_number(file, value))?;
                number.asked(attribute, Absent::IsNothing)
            }
            None => self.read(file, "", pattern)?,
        };
        self.and(condition);
        Ok(())
    }

    /// What an attribute says that is read from a file below the device's folder.
    pub(super) fn read(
        &mut self,
        file: &str,
        folder: &str,
        pattern: &Pattern,
    ) -> Result<String, String> {
        if file.starts_with('[') || file.contains(['$', '%', '*']) {
            return Err(format!("the file {file:?} is not of the device, or not known before"));
        }
        let name = self.attribute(PathBuf::from(format!("{folder}{file}")))?;
        Ok(pattern.asked(&name, Absent::IsNothing))
    }

    /// The attribute that a file becomes, called after it.
    fn attribute(&mut self, file: PathBuf) -> Result<String, String> {
        let letter = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '_' };
        let text: String = file.display().to_string().chars().map(letter).collect();
        let is_plain = text.starts_with(|first: char| first.is_ascii_alphabetic());
        let is_taken =
            TAKEN.contains(&text.as_str()) || text.starts_with("usb") || text.starts_with("pci");
        let base = if is_plain && !is_taken { text } else { format!("file_{text}") };
        let names = std::iter::once(base.clone()).chain((2..9).map(|nth| format!("{base}_{nth}")));
        let names = names.filter_map(|name| AttributeName::given("windlass.dev", &name));
        let mut free = names.filter(|name| self.attributes.get(name).is_none_or(|it| *it == file));
        let name = free
            .next()
            .ok_or_else(|| format!("the file {} has too long a name", file.display()))?;
        let text = name.name().to_owned();
        self.attributes.insert(name, file);
        Ok(text)
    }

    fn property(&mut self, property: &str, term: &Term) -> Result<(), Left> {
        let pattern = Pattern::of(term).map_err(Left::Because)?;
        let condition = match property {
            "DEVTYPE" if self.is_on("usb") => {
                return if pattern.answer("usb_device") { Ok(()) } else { Err(interface_alone()) };
            }
            "SUBSYSTEM" => return self.subsystem(term),
            "DRIVER" | "ID_USB_DRIVER" => return self.driver(term).map_err(Left::Because),
            "ID_BUS" => of_bus(&pattern),
            "PCI_ID" => pci_ids(&pattern, "pciVendor", "pciDevice"),
            "PCI_SUBSYS_ID" => pci_ids(&pattern, "pciSubsystemVendor", "pciSubsystemDevice"),
            "PCI_CLASS" => pci_class(&pattern),
            "DEVNAME" => dev_name(&pattern),
            _ => described(property, &pattern).unwrap_or_else(|| Err(unknown(term))),
        };
        self.and(condition.map_err(Left::Because)?);
        Ok(())
    }

    fn into_asked(self) -> Result<Asked, Left> {
        let text = self.all.text();
        let because = |error: InvalidExpression| Left::Because(error.to_string());
        let expression = (!text.is_empty()).then(|| text.parse()).transpose().map_err(because)?;
        let Self { find, attributes, notes, .. } = self;
        Ok(Asked { find, expression, attributes, notes })
    }
}

fn interface_alone() -> Left {
    Left::Because(format!("it is about interfaces: {ONE_INTERFACE}"))
}

/// What has the ids of USB or PCI.
fn of_bus(pattern: &Pattern) -> Result<String, String> {
    let one = |name: &String| match name.as_str() {
        "usb" => Ok(has("usbVendor")),
        "pci" => Ok(has("pciVendor")),
        _ => Err(format!("ENV{{ID_BUS}}: no attribute tells of {name:?}")),
    };
    let all: Vec<_> = pattern.alternatives().iter().map(one).collect::<Result<_, _>>()?;
    Ok(in_the_end(pattern, any(&all)))
}

/// What the kernel writes as `10EE:903F`.
fn pci_ids(pattern: &Pattern, vendor: &str, device: &str) -> Result<String, String> {
    let one = |ids: &String| {
        let ids = ids.to_ascii_lowercase();
        let (first, second) =
            ids.split_once(':').ok_or_else(|| format!("{ids:?} is no PCI id, 10EE:903F"))?;
        let asked = |attribute: &str, id: &str| {
            let alone = pattern.with(id.to_owned());
            alone.asked(attribute, Absent::IsEmpty)
        };
        Ok(format!("{} && {}", asked(vendor, first), asked(device, second)))
    };
    let all: Vec<_> = pattern.alternatives().iter().map(one).collect::<Result<_, String>>()?;
    Ok(in_the_end(pattern, any(&all)))
}

/// The kernel writes the class in capitals and without zeros before it.
fn pci_class(pattern: &Pattern) -> Result<String, String> {
    let lower = pattern.mapped(|class| Ok(class.to_ascii_lowercase()))?;
    Ok(in_the_end(pattern, lower.asked_behind("pciClass", "0x0*")))
}

fn dev_name(pattern: &Pattern) -> Result<String, String> {
    let short = |name: &str| {
        let name = name.strip_prefix("/dev/").map(str::to_owned);
        name.ok_or_else(|| "DEVNAME is compared with what is not below /dev/".to_owned())
    };
    Ok(pattern.mapped(short)?.asked("devName", Absent::IsEmpty))
}

/// A property that says what an attribute says.
fn described(property: &str, pattern: &Pattern) -> Option<Result<String, String>> {
    if property == "OF_COMPATIBLE_0" {
        return Some(Ok(pattern.asked("ofCompatible", Absent::IsEmpty)));
    }
    // For sound cards and interfaces, udev's rules copy the ids of a PCI function as sysfs writes them.
    let file = match property {
        "ID_VENDOR_ID" => "vendor",
        "ID_MODEL_ID" => "device",
        _ => "",
    };
    if pattern.alternatives().iter().all(|value| sysfs::is_pci_file(file, value)) {
        let number = pattern.mapped(|value| sysfs::pci_number(file, value));
        let attribute = sysfs::of_pci(file)?;
        return Some(number.map(|number| number.asked(attribute, Absent::IsEmpty)));
    }
    let attribute = sysfs::of_usb_property(property)?;
    let is_text = !property.ends_with("_ID");
    let printed =
        pattern.mapped(|value| Ok(if is_text { unprinted(value) } else { value.to_owned() }));
    Some(printed.map(|printed| printed.asked(attribute, Absent::IsEmpty)))
}

/// Udev writes `_` for a space and what else it does not print.
fn unprinted(value: &str) -> String {
    value.replace('_', "[!0-9A-Za-z]")
}

/// A condition that was made of what fits, as it was asked.
fn in_the_end(pattern: &Pattern, condition: String) -> String {
    match pattern.operator() {
        Operator::Fits => condition,
        _ => format!("!({condition})"),
    }
}

/// Why a key cannot be asked here.
fn unknown(term: &Term) -> String {
    let name = term.name();
    let why = match term.key.as_str() {
        "ENV" => "the property is udev's own, and no attribute has it",
        "TAG" | "TAGS" | "NAME" | "SYMLINK" => "only udev knows what its rules gave a device",
        "PROGRAM" | "IMPORT" | "RESULT" => "no program is run to look for devices",
        "DEVPATH" => "it has numbers that change: write usbPort or the PCI address in match",
        "TEST" | "CONST" | "SYSCTL" => "it asks the machine, not the device",
        "BUS" | "SYSFS" | "ID" | "PLACE" => {
            "udev has given up the key: write SUBSYSTEMS, ATTRS, KERNELS"
        }
        _ => "udev has no such key to ask for",
    };
    format!("{name}: {why}")
}

const ONE_INTERFACE: &str = "of one interface nothing is known by itself: write usbInterfaceClass or \
    usbPort of the device in match";
