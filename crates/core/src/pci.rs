//! PCI addresses, and PCIe paths from host bridge to device.

use std::{fmt, str::FromStr};

/// Domain, bus, device and function of a PCI function, `0000:1b:00.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

/// Path from a host bridge to a device as in sysfs: root, bridges, device.
/// `pci0000:15/0000:15:01.0/0000:16:00.0/0000:1b:00.0`
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciePath {
    root: String,
    hops: Vec<PciAddress>,
    /// Number of hops above the last host bridge: 0, except for a device below a controller with its own host bridge,
    /// such as Intel VMD.
    above: usize,
}

/// Text that is not a PCI address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a PCI address such as 0000:1b:00.0")]
pub struct InvalidPciAddress(String);

serialize_as_text!(PciAddress, PciePath);
deserialize_from_text!(PciAddress);

// === impl PciAddress ===

impl PciAddress {
    /// Five bits of a device and function byte.
    const MAX_DEVICE: u8 = 0x1f;
    /// Three bits of a device and function byte.
    const MAX_FUNCTION: u8 = 0x7;

    /// The function of a PCI requester id: bus, then device and function in one byte.
    pub fn from_requester_id(domain: u32, [bus, device_function]: [u8; 2]) -> Self {
        let (device, function) = (device_function >> 3, device_function & Self::MAX_FUNCTION);
        Self { domain, bus, device, function }
    }

    /// Domain in the upper 16 bits and requester id in the lower, as in AMD's driver.
    pub fn to_requester_id(self) -> u32 {
        let low = [self.bus, (self.device << 3) | self.function];
        (self.domain << 16) | u32::from(u16::from_be_bytes(low))
    }

    /// The address in device ids, `0000-1b-00-0`.
    pub fn to_dashed(self) -> String {
        self.to_string().replace([':', '.'], "-")
    }

    /// Function 0 of the same device.
    #[must_use]
    pub fn first_function(self) -> Self {
        Self { function: 0, ..self }
    }

    fn parse(text: &str) -> Option<Self> {
        let (rest, function) = text.rsplit_once('.')?;
        let (rest, device) = rest.rsplit_once(':')?;
        let (domain, bus) = rest.rsplit_once(':')?;
        let address = Self {
            domain: u32::from_str_radix(domain, 16).ok()?,
            bus: u8::from_str_radix(bus, 16).ok()?,
            device: u8::from_str_radix(device, 16).ok()?,
            function: u8::from_str_radix(function, 16).ok()?,
        };
        (address.device <= Self::MAX_DEVICE && address.function <= Self::MAX_FUNCTION)
            .then_some(address)
    }
}

impl FromStr for PciAddress {
    type Err = InvalidPciAddress;

    /// Accepts the spellings of sysfs and NVML. NVML writes eight digits of domain in upper case.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text.trim()).ok_or_else(|| InvalidPciAddress(text.to_owned()))
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

// === impl PciePath ===

impl PciePath {
    /// Parses the link target of `/sys/bus/pci/devices/<address>`. Skips components before the host bridge
    /// (`../../../devices`, a platform device) and after the last PCI function. `None` without a host bridge
    /// or function.
    pub fn from_sysfs(link: &str) -> Option<Self> {
        let mut parts = link.split('/').skip_while(|part| !is_host_bridge(part));
        let root = parts.next()?.to_owned();
        let (mut hops, mut above) = (Vec::new(), 0);
        for part in parts {
            match part.parse() {
                Ok(hop) => hops.push(hop),
                Err(_) if is_host_bridge(part) => above = hops.len(),
                Err(_) => break,
            }
        }
        (hops.len() > above).then_some(Self { root, hops, above })
    }

    /// The first host bridge, `pci0000:15`; published as `resource.kubernetes.io/pcieRoot`.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// True if both are functions of one device.
    pub fn same_device_as(&self, other: &Self) -> bool {
        let device =
            |path: &Self| path.hops.last().map(|last| (last.domain, last.bus, last.device));
        self.root == other.root && device(self) == device(other)
    }

    /// Upstream port of the nearest PCIe switch above the device; published as `windlass.dev/pcieSwitch`. Below the root
    /// port, a switch is two bridges deep: the upstream port, and a downstream port per device.
    pub fn switch(&self) -> Option<PciAddress> {
        let [_, .., upstream_port, _] = self.bridges() else { return None };
        Some(*upstream_port)
    }

    /// Bridges above the device, from the root port down.
    pub fn bridges(&self) -> &[PciAddress] {
        self.hops[self.above..].split_last().map_or(&[], |(_, bridges)| bridges)
    }
}

impl fmt::Display for PciePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.root)?;
        for (index, hop) in self.hops.iter().enumerate() {
            // sysfs names a host bridge after the bus of its ports.
            if index == self.above && index > 0 {
                write!(f, "/pci{:04x}:{:02x}", hop.domain, hop.bus)?;
            }
            write!(f, "/{hop}")?;
        }
        Ok(())
    }
}

/// `pci`, a domain of four or more hexadecimal digits, and a bus.
fn is_host_bridge(part: &str) -> bool {
    let is_hex = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    part.strip_prefix("pci")
        .and_then(|address| address.split_once(':'))
        .is_some_and(|(domain, bus)| is_hex(domain) && is_hex(bus))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_sysfs_and_nvml_are_the_same_address() {
        for (text, expected) in [
            ("0000:1b:00.0", "0000:1b:00.0"),
            ("00000000:1B:00.0", "0000:1b:00.0"),
            ("10000:e1:00.7", "10000:e1:00.7"),
        ] {
            assert_eq!(text.parse::<PciAddress>().expect("valid").to_string(), expected);
        }
    }

    #[test]
    fn an_address_is_a_number_to_drivers() {
        let address = PciAddress::from_requester_id(1, [0x65, 0x09]);
        assert_eq!(address.to_string(), "0001:65:01.1");
        assert_eq!(address.to_requester_id(), 0x1_6509);
        assert_eq!(address.first_function().to_string(), "0001:65:01.0");
    }

    #[test]
    fn an_error_names_the_text_that_is_not_an_address() {
        for text in ["", "1b:00.0", "0000:1b:00", "0000:1b:20.0", "0000:1b:00.8", "0000:xx:00.0"] {
            let error = text.parse::<PciAddress>().expect_err("invalid").to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }

    #[test]
    fn a_sysfs_link_becomes_root_bridges_and_device() {
        let link = "../../../devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:1b:00.0";
        let path = PciePath::from_sysfs(link).expect("a path");
        assert_eq!(path.root(), "pci0000:15");
        assert_eq!(path.bridges().len(), 2);
        assert_eq!(path.to_string(), "pci0000:15/0000:15:01.0/0000:16:00.0/0000:1b:00.0");
        for odd in ["../../../devices/platform/soc", "pci0000:15", "", "pci:/0000:15:01.0"] {
            assert_eq!(PciePath::from_sysfs(odd), None, "{odd}");
        }
    }

    #[test]
    fn a_host_bridge_may_be_below_a_platform_device_or_another_function() {
        let arm = "../../../devices/platform/40000000.pcie/pci0002:00/0002:00:00.0/0002:01:00.0";
        let path = PciePath::from_sysfs(arm).expect("a path");
        assert_eq!(path.to_string(), "pci0002:00/0002:00:00.0/0002:01:00.0");
        let vmd = "pci0000:5d/0000:5d:05.5/pci10000:00/10000:00:02.0/10000:01:00.0";
        let path = PciePath::from_sysfs(vmd).expect("a path");
        assert_eq!((path.root(), path.bridges().len()), ("pci0000:5d", 1));
        assert_eq!(path.to_string(), vmd);
        assert_eq!(PciePath::from_sysfs("pci0000:5d/0000:5d:05.5/pci10000:00"), None);
    }
}
