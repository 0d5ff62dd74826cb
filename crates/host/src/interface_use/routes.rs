//! Parser of the kernel's route tables.
//!
//! The files list the main table with one interface per route: of several IPv4 next hops only the first. Netlink
//! would list all next hops, but those of the agent's network namespace instead of the host's.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Route<'a> {
    pub(super) interface: &'a str,
    pub(super) is_default: bool,
}

/// Parses a line of `route`: interface, destination, and mask as eighth field, in host byte order
/// (`proc_net_route`, proc(5)).
pub(super) fn parse_ipv4(line: &str) -> Option<Route<'_>> {
    let fields: Vec<_> = line.split_ascii_whitespace().collect();
    let [interface, destination, _, _, _, _, _, mask, ..] = fields[..] else { return None };
    let [destination, mask] = [destination, mask].map(|word| u32::from_str_radix(word, 16).ok());
    Some(Route { interface, is_default: destination? == 0 && mask? == 0 })
}

/// Parses a line of `ipv6_route`: destination, prefix length, and interface as last of ten fields (kernel
/// documentation, `ipv6_route`). Skips link-local and multicast routes, which every interface has.
pub(super) fn parse_ipv6(line: &str) -> Option<Route<'_>> {
    let fields: Vec<_> = line.split_ascii_whitespace().collect();
    let [destination, length, _, _, _, _, _, _, _, interface] = fields[..] else { return None };
    let destination = u128::from_str_radix(destination, 16).ok()?;
    let is_default = destination == 0 && u8::from_str_radix(length, 16).ok()? == 0;
    let is_on_every_interface = destination >> 118 == 0xfe80 >> 6 || destination >> 120 == 0xff;
    (!is_on_every_interface).then_some(Route { interface, is_default })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(route: Option<Route<'_>>) -> Option<(&str, bool)> {
        route.map(|route| (route.interface, route.is_default))
    }

    #[test]
    fn only_routes_to_everywhere_are_default_routes() {
        for (line, expected) in [
            ("Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\tMTU", None),
            ("eth0\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0", Some(("eth0", true))),
            ("eth1\t0000A8C0\t00000000\t0001\t0\t0\t100\t0000FFFF\t0\t0\t0", Some(("eth1", false))),
            ("eth1\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000080\t0\t0\t0", Some(("eth1", false))),
            ("", None),
        ] {
            assert_eq!(summary(parse_ipv4(line)), expected, "{line}");
        }
    }

    #[test]
    fn link_local_and_multicast_routes_are_skipped() {
        let (zero, link_local) = ("0".repeat(32), format!("fe80{}", "0".repeat(28)));
        let (multicast, global) =
            (format!("ff{}", "0".repeat(30)), format!("fd00{}", "0".repeat(28)));
        for (line, expected) in [
            (format!("{zero} 00 {zero} 00 {link_local} 400 1 0 3 eth0"), Some(("eth0", true))),
            (format!("{global} 40 {zero} 00 {zero} 100 1 0 1 eth1"), Some(("eth1", false))),
            (format!("{zero} 60 {zero} 00 {zero} 100 1 0 1 eth1"), Some(("eth1", false))),
            (format!("{link_local} 40 {zero} 00 {zero} 100 1 0 1 eth1"), None),
            (format!("{multicast} 08 {zero} 00 {zero} 100 1 0 1 eth1"), None),
            ("eth1".to_owned(), None),
        ] {
            assert_eq!(summary(parse_ipv6(&line)), expected, "{line}");
        }
    }
}
