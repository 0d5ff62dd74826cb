//! The host's own use of network interfaces: an interface in use is never allocated exclusively.

mod routes;

use std::{
    collections::BTreeSet,
    io::{self, BufRead as _, BufReader, Read as _},
};

use self::routes::{Route, parse_ipv4, parse_ipv6};
use crate::{
    Host,
    files::{Symlinks, open_regular},
};

/// Interfaces of the host's routes.
#[derive(Debug, Default)]
pub struct InterfaceUse {
    default_routes: BTreeSet<String>,
    /// Interfaces with other routes: the host has an address in the network of such an interface.
    other_routes: BTreeSet<String>,
    /// Reason why the list of routes may be incomplete.
    pub unknown: Option<String>,
}

/// Route tables of process 1, in the host's namespace. `/proc/net` is the agent's own.
const IPV4: &str = "/proc/1/net/route";
const IPV6: &str = "/proc/1/net/ipv6_route";

/// Maximum number of routes to read. Kubernetes networks have thousands; internet routers have a million, too many
/// for every scan.
const MAX_ROUTES: usize = 100_000;

/// Maximum size of a table in bytes: the kernel writes up to 150 characters per route.
const MAX_TABLE_BYTES: u64 = 16 << 20;

/// Folder of all network interfaces.
pub const NET: &str = "/sys/class/net";

/// Master interfaces that are unused while they are down: sysfs folder that marks the kind, and name of the kind. Other
/// masters always count as in use: Open vSwitch's `ovs-system` is down while it works.
const PLAIN_MASTERS: [(&str, &str); 2] = [("bonding", "bond"), ("bridge", "bridge")];

// === impl InterfaceUse ===

impl InterfaceUse {
    /// Reads the route tables of the host.
    pub fn read(host: &Host) -> Self {
        let mut host_use = Self::default();
        let ipv4 = host_use.read_table(host, IPV4, parse_ipv4);
        // Kernels without IPv6 have no such table.
        let ipv6 = match host_use.read_table(host, IPV6, parse_ipv6) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            read => read,
        };
        let failure = ipv4.err().map(|error| (IPV4, error));
        let failure = failure.or_else(|| ipv6.err().map(|error| (IPV6, error)));
        host_use.unknown = failure.map(|(path, error)| {
            format!("the host's routes cannot be read, and one may use it: {path}: {error}")
        });
        host_use
    }

    /// Reads line by line, since tables may be large.
    fn read_table(
        &mut self,
        host: &Host,
        path: &str,
        parse: fn(&str) -> Option<Route<'_>>,
    ) -> io::Result<()> {
        let table = open_regular(&host.path(path), Symlinks::Followed)?;
        let mut table = BufReader::new(table.take(MAX_TABLE_BYTES));
        let mut routes = 0;
        for line in table.by_ref().lines().take(MAX_ROUTES + 2) {
            self.add_route(parse(&line?));
            routes += 1;
        }
        if routes > MAX_ROUTES + 1 || table.get_ref().limit() == 0 {
            let detail = format!("it has more than {MAX_ROUTES}");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, detail));
        }
        Ok(())
    }

    fn add_route(&mut self, route: Option<Route<'_>>) {
        let Some(Route { interface, is_default }) = route else { return };
        let routes = if is_default { &mut self.default_routes } else { &mut self.other_routes };
        if interface != "lo" && !routes.contains(interface) {
            routes.insert(interface.to_owned());
        }
    }

    /// Reason why an interface cannot be used exclusively by a container.
    pub fn exclusive_use_refusal(&self, host: &Host, interface: &str) -> Option<String> {
        let interfaces = with_upper_interfaces(host, interface);
        let conflict_over = |routes: &BTreeSet<String>, subject: &str| {
            let route = interfaces.iter().find(|name| routes.contains(*name))?;
            let suffix = (route != interface).then(|| format!(", which is made of {interface}"));
            Some(format!("{subject} is over {route}{}", suffix.unwrap_or_default()))
        };
        conflict_over(&self.default_routes, "the host's default route")
            .or_else(|| conflict_over(&self.other_routes, "a route of the host"))
            .or_else(|| part_in_use(host, interface))
            .or_else(|| self.unknown.clone())
    }
}

/// True if an interface is a member of a bond.
pub fn is_in_bond(host: &Host, interface: &str) -> bool {
    host.exists(format!("{NET}/{interface}/master/bonding"))
}

/// Reason why an interface is in use: its master is in use, or may be.
fn part_in_use(host: &Host, interface: &str) -> Option<String> {
    let master = host.link_name(format!("{NET}/{interface}/master"))?;
    let folder = format!("{NET}/{master}");
    let kind = PLAIN_MASTERS.iter().find(|(marker, _)| host.exists(format!("{folder}/{marker}")));
    match kind {
        None => Some(format!("{interface} is a part of {master}")),
        Some(_) if host.read_text(format!("{folder}/operstate")).as_deref() == Some("down") => None,
        Some((_, kind)) => {
            Some(format!("{interface} is a part of the {kind} {master}, which is in use"))
        }
    }
}

/// An interface and all interfaces built on it: bonds, bridges, VLANs.
fn with_upper_interfaces(host: &Host, interface: &str) -> Vec<String> {
    let mut interfaces = vec![interface.to_owned()];
    let mut index = 0;
    while let Some(name) = interfaces.get(index) {
        let uppers: Vec<_> =
            upper_interfaces(host, name).filter(|upper| !interfaces.contains(upper)).collect();
        interfaces.extend(uppers);
        index += 1;
    }
    interfaces
}

fn upper_interfaces(host: &Host, interface: &str) -> impl Iterator<Item = String> {
    let folder = format!("{NET}/{interface}");
    let uppers = host.entry_names(&folder).into_iter();
    let uppers = uppers.filter_map(|name| name.strip_prefix("upper_").map(str::to_owned));
    uppers.chain(host.link_name(format!("{folder}/master")))
}
