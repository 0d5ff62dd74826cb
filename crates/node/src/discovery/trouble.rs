//! What can be wrong with a device, as far as files tell.

use std::path::Path;

use windlass_core::{
    device::DeviceNode,
    health::{Observation, Reason},
};

use super::graphics;
use crate::host::{Host, PciFunction};

/// What is wrong with a device.
pub(super) type Trouble = (Reason, String);

/// What a look saw of a device with this trouble.
pub(super) fn observation(trouble: Option<Trouble>) -> Observation {
    trouble.map_or(Observation::Passed, |(reason, detail)| Observation::Failed(reason, detail))
}

/// The function has no driver, or one that these devices are not used through.
pub(super) fn of_driver(function: &PciFunction, drivers: &[&str]) -> Option<Trouble> {
    let wanted = drivers.join(" or ");
    let detail = match function.driver.as_deref() {
        Some(driver) if drivers.contains(&driver) => return None,
        Some(other) => format!("its driver is {other}, not {wanted}"),
        None => format!("it has no driver: {wanted} is not bound"),
    };
    Some((Reason::DriverUnbound, detail))
}

/// A node is not there, or none to compute with was made.
pub(super) fn of_nodes(host: &Host, nodes: &[DeviceNode]) -> Option<Trouble> {
    if !nodes.iter().any(graphics::is_render) {
        return Some((Reason::NodeMissing, "its driver made no render node".to_owned()));
    }
    let missing = nodes.iter().find(|node| !host.has(&node.path))?;
    Some((Reason::NodeMissing, format!("{} is not there", missing.path.display())))
}

/// A sensor of the device is at the limit that its driver calls critical, or beyond.
pub(super) fn of_heat(host: &Host, folder: &Path) -> Option<Trouble> {
    let monitors = folder.join("hwmon");
    let mut monitors = host.names(&monitors).into_iter().map(|name| monitors.join(name));
    monitors.find_map(|monitor| {
        let names = host.names(&monitor).into_iter();
        let mut limits = names.filter(|name| name.starts_with("temp") && name.ends_with("_crit"));
        limits.find_map(|limit| hot_sensor(host, &monitor, limit.strip_suffix("crit")?))
    })
}

/// Temperatures are in thousandths of a degree, `Documentation/hwmon/sysfs-interface.rst`.
fn hot_sensor(host: &Host, monitor: &Path, sensor: &str) -> Option<Trouble> {
    let millidegrees =
        |file: &str| host.text(monitor.join(format!("{sensor}{file}")))?.parse().ok();
    let (now, limit): (i64, i64) = (millidegrees("input")?, millidegrees("crit")?);
    let label = host.text(monitor.join(format!("{sensor}label"))).unwrap_or_default();
    let detail = format!("{label} {} °C, limit {} °C", now / 1_000, limit / 1_000);
    (limit > 0 && now >= limit).then(|| (Reason::OutOfBounds, detail.trim().to_owned()))
}
