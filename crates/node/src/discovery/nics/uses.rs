//! What the host itself does with an interface: one that it speaks through is given to no container.

use std::collections::BTreeSet;

use crate::host::Host;

/// The host's default routes.
#[derive(Debug)]
pub(super) struct Uses {
    default_routes: BTreeSet<String>,
    /// Whether the kernel's routes could be read at all.
    pub(super) is_known: bool,
}

/// The routes of the first process, which has the host's network; a simulated host has no processes.
const ROUTES: [&str; 2] = ["/proc/1/net", "/proc/net"];

const NET: &str = "/sys/class/net";

// === impl Uses ===

impl Uses {
    pub(super) fn read(host: &Host) -> Self {
        let table = |name: &str| ROUTES.iter().find_map(|dir| host.text(format!("{dir}/{name}")));
        let (ipv4, ipv6) = (table("route"), table("ipv6_route"));
        let is_known = ipv4.is_some() || ipv6.is_some();
        let ipv4 = ipv4.iter().flat_map(|table| table.lines()).filter_map(default_ipv4);
        let ipv6 = ipv6.iter().flat_map(|table| table.lines()).filter_map(default_ipv6);
        let default_routes = ipv4.chain(ipv6).filter(|name| *name != "lo").map(str::to_owned);
        Self { default_routes: default_routes.collect(), is_known }
    }

    /// Why no container may have an interface to itself.
    pub(super) fn of(&self, host: &Host, interface: &str) -> Option<String> {
        if let Some(route) = self.default_route(host, interface) {
            return Some(if route == interface {
                format!("the host's default route is over {interface}")
            } else {
                format!("the host's default route is over {route}, which is made of {interface}")
            });
        }
        let master = host.link_name(format!("{NET}/{interface}/master"))?;
        let state = host.text(format!("{NET}/{master}/operstate"));
        let kind = if host.has(format!("{NET}/{master}/bonding")) { "bond" } else { "bridge" };
        (state.as_deref() != Some("down"))
            .then(|| format!("{interface} is a part of the {kind} {master}, which is in use"))
    }

    /// The interface with a default route that this one is, or lies below of: as a member of a bond or a
    /// bridge, or under a VLAN.
    fn default_route(&self, host: &Host, interface: &str) -> Option<String> {
        let (mut seen, mut open) = (BTreeSet::new(), vec![interface.to_owned()]);
        while let Some(next) = open.pop() {
            if self.default_routes.contains(&next) {
                return Some(next);
            }
            open.extend(above(host, &next).filter(|upper| seen.insert(upper.clone())));
        }
        None
    }
}

fn above(host: &Host, interface: &str) -> impl Iterator<Item = String> {
    let folder = format!("{NET}/{interface}");
    let uppers = host.names(&folder).into_iter();
    let uppers = uppers.filter_map(|name| name.strip_prefix("upper_").map(str::to_owned));
    uppers.chain(host.link_name(format!("{folder}/master")))
}

/// Interface, destination and, eighth, mask; all zeros is everywhere (`proc_net_route`, proc(5)).
fn default_ipv4(line: &str) -> Option<&str> {
    let fields: Vec<_> = line.split_ascii_whitespace().collect();
    let everywhere = fields.get(1) == Some(&"00000000") && fields.get(7) == Some(&"00000000");
    fields.first().filter(|_| everywhere).copied()
}

/// Destination, length of its prefix and, last, the interface (`ipv6_route`, kernel documentation).
fn default_ipv6(line: &str) -> Option<&str> {
    let fields: Vec<_> = line.split_ascii_whitespace().collect();
    let is_zero = |field: &&str| field.bytes().all(|digit| digit == b'0');
    let everywhere = fields.len() == 10 && fields[..2].iter().all(is_zero);
    fields.last().filter(|_| everywhere).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_routes_to_everywhere_are_default_routes() {
        for (line, expected) in [
            ("Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\tMTU", None),
            ("eth0\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0", Some("eth0")),
            ("eth1\t0000A8C0\t00000000\t0001\t0\t0\t100\t0000FFFF\t0\t0\t0", None),
            ("eth1\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000080\t0\t0\t0", None),
            ("", None),
        ] {
            assert_eq!(default_ipv4(line), expected, "{line}");
        }
        let (zero, one) = ("0".repeat(32), format!("fe80{}", "0".repeat(28)));
        for (line, expected) in [
            (format!("{zero} 00 {zero} 00 {one} 400 1 0 3 eth0"), Some("eth0")),
            (format!("{one} 40 {zero} 00 {zero} 100 1 0 1 eth1"), None),
            (format!("{zero} 60 {zero} 00 {zero} 100 1 0 1 eth1"), None),
            ("eth1".to_owned(), None),
        ] {
            assert_eq!(default_ipv6(&line), expected, "{line}");
        }
    }
}
