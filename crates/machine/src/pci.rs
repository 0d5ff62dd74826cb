//! PCI in the kernel's format: addresses, ids, and the path from the host bridge to a function.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// PCI address, `0000:1b:00.0`; ordered as buses are enumerated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PciAddress {
    /// Segment of the PCI hierarchy.
    pub domain: u16,
    /// Bus in the domain.
    pub bus: u8,
    /// Slot on the bus.
    pub device: u8,
    /// Function of the device.
    pub function: u8,
}

/// PCI vendor and device id, `10de:2330`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PciId {
    /// Vendor id; 10de is NVIDIA.
    pub vendor: u16,
    /// Device id.
    pub device: u16,
}

/// Path from a host bridge to a function, as under `/sys/devices`:
/// `pci0000:15/0000:15:01.0/0000:16:00.0/0000:1b:00.0`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PciPath {
    root: String,
    steps: Vec<PciAddress>,
}

/// Syntax error in an address, id or path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a PCI {kind}, write it like `{example}`")]
pub struct PciSyntaxError {
    text: String,
    kind: &'static str,
    example: &'static str,
}

/// PCI distance of two functions, nearest first; the terms of `nvidia-smi topo` are in brackets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PciDistance {
    /// Under one PCIe switch (PIX).
    Pix,
    /// Under one root port, over several switches (PXB).
    Pxb,
    /// Under one host bridge (PHB).
    Phb,
    /// Under different host bridges.
    DifferentHostBridges,
}

// === impl PciAddress ===

impl PciAddress {
    /// Bus id in NVML's format: upper case, with eight digits for the domain.
    pub fn nvml_bus_id(&self) -> String {
        format!("{:08X}:{:02X}:{:02X}.{:X}", self.domain, self.bus, self.device, self.function)
    }

    /// Bus, device and function as one number: the routing id of PCI Express.
    pub fn routing_id(&self) -> u16 {
        u16::from(self.bus) << 8 | u16::from(self.device) << 3 | u16::from(self.function)
    }

    /// Inverse of [`Self::routing_id`].
    pub fn from_routing_id(domain: u16, id: u16) -> Self {
        let [bus, slot] = id.to_be_bytes();
        Self { domain, bus, device: slot >> 3, function: slot & 7 }
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

impl FromStr for PciAddress {
    type Err = PciSyntaxError;

    /// Parses an address with a domain of any width. Without one, as in `lspci`'s `1b:00.0`, the domain is 0.
    fn from_str(text: &str) -> Result<Self, PciSyntaxError> {
        let parse = || {
            let (slot, function) = text.rsplit_once('.')?;
            let mut numbers = slot.rsplit(':');
            let (device, bus) = (numbers.next()?, numbers.next()?);
            let domain = numbers.next().unwrap_or("0");
            let address = Self {
                domain: u16::try_from(u32::from_str_radix(domain, 16).ok()?).ok()?,
                bus: u8::from_str_radix(bus, 16).ok()?,
                device: u8::from_str_radix(device, 16).ok()?,
                function: u8::from_str_radix(function, 16).ok()?,
            };
            (numbers.next().is_none() && address.device < 32 && address.function < 8)
                .then_some(address)
        };
        parse().ok_or_else(|| PciSyntaxError::new(text, "address", "0000:1b:00.0"))
    }
}

// === impl PciId ===

impl fmt::Display for PciId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:04x}", self.vendor, self.device)
    }
}

impl FromStr for PciId {
    type Err = PciSyntaxError;

    fn from_str(text: &str) -> Result<Self, PciSyntaxError> {
        let parse = || {
            let (vendor, device) = text.split_once(':')?;
            let hex = |digits: &str| u16::from_str_radix(digits, 16).ok();
            (vendor.len() == 4 && device.len() == 4)
                .then_some(Self { vendor: hex(vendor)?, device: hex(device)? })
        };
        parse().ok_or_else(|| PciSyntaxError::new(text, "vendor and device", "10de:2330"))
    }
}

// === impl PciPath ===

impl PciPath {
    /// Address of the function at the end.
    pub fn address(&self) -> PciAddress {
        self.function_and_bridges().0
    }

    /// Name of the host bridge, `pci0000:15`.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// Addresses from the root port to the function itself.
    pub fn steps(&self) -> &[PciAddress] {
        &self.steps
    }

    /// Function at the end, and the bridges above it, topmost first.
    pub fn function_and_bridges(&self) -> (PciAddress, &[PciAddress]) {
        let (end, bridges) = self.steps.split_last().expect("the parser requires a step");
        (*end, bridges)
    }

    /// Same path with another function at its end.
    #[must_use]
    pub fn with_address(&self, address: PciAddress) -> Self {
        let mut path = self.clone();
        path.steps.pop();
        path.steps.push(address);
        path
    }

    /// Distance between the ends of two paths.
    pub fn distance(&self, other: &Self) -> PciDistance {
        if self.root != other.root {
            return PciDistance::DifferentHostBridges;
        }
        let shared_count = self.steps.iter().zip(&other.steps).take_while(|(a, b)| a == b).count();
        let remaining_count =
            (self.steps.len() - shared_count).max(other.steps.len() - shared_count);
        match (shared_count, remaining_count) {
            (0, _) => PciDistance::Phb,
            // Each remaining path has at most the switch's downstream port and the device.
            (_, 0..=2) => PciDistance::Pix,
            _ => PciDistance::Pxb,
        }
    }
}

impl fmt::Display for PciPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.root)?;
        self.steps.iter().try_for_each(|step| write!(f, "/{step}"))
    }
}

impl FromStr for PciPath {
    type Err = PciSyntaxError;

    fn from_str(text: &str) -> Result<Self, PciSyntaxError> {
        let syntax_error =
            || PciSyntaxError::new(text, "path", "pci0000:15/0000:15:01.0/0000:1b:00.0");
        let (root, steps) = text.split_once('/').ok_or_else(syntax_error)?;
        let bridge = root.strip_prefix("pci").and_then(|bridge| bridge.split_once(':'));
        bridge
            .filter(|(domain, bus)| domain.len() == 4 && bus.len() == 2)
            .ok_or_else(syntax_error)?;
        let steps = steps.split('/').map(str::parse).collect::<Result<_, _>>()?;
        Ok(Self { root: root.to_owned(), steps })
    }
}

// === impl PciSyntaxError ===

impl PciSyntaxError {
    fn new(text: &str, kind: &'static str, example: &'static str) -> Self {
        Self { text: text.to_owned(), kind, example }
    }
}

macro_rules! serde_as_text {
    ($($type:ty),*) => {$(
        impl TryFrom<String> for $type {
            type Error = PciSyntaxError;

            fn try_from(text: String) -> Result<Self, PciSyntaxError> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(value: $type) -> Self {
                value.to_string()
            }
        }
    )*};
}

serde_as_text!(PciAddress, PciId, PciPath);

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> PciPath {
        text.parse().expect("a path")
    }

    #[test]
    fn addresses_print_in_the_kernel_s_and_in_nvml_s_format() {
        let address: PciAddress = "0000:1b:00.0".parse().expect("an address");
        assert_eq!(address.to_string(), "0000:1b:00.0");
        assert_eq!(address.nvml_bus_id(), "00000000:1B:00.0");
        assert_eq!("00000000:1B:00.0".parse(), Ok(address));
        assert_eq!("1b:00.0".parse(), Ok(address));
    }

    #[test]
    fn invalid_addresses_are_refused_with_an_example() {
        for invalid in ["", "1b", "0:0:0:0.0", "0000:1b:20.0", "0000:1b:00.8", "x:1b:00.0"] {
            let error = invalid.parse::<PciAddress>().expect_err(invalid);
            assert!(error.to_string().contains("0000:1b:00.0"), "{error}");
        }
    }

    #[test]
    fn distance_counts_switches_on_the_path() {
        let gpu = path("pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:1b:00.0");
        let check = |other, expected| assert_eq!(gpu.distance(&path(other)), expected, "{other}");
        check("pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0", PciDistance::Pix);
        check(
            "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:03.0/0000:20:00.0/0000:21:00.0/0000:22:00.0",
            PciDistance::Pxb,
        );
        check("pci0000:15/0000:15:02.0/0000:22:00.0", PciDistance::Phb);
        check("pci0000:97/0000:97:01.0/0000:9d:00.0", PciDistance::DifferentHostBridges);
    }
}
