//! Failures of devices, as far as files show them.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use windlass_core::{
    device::DeviceNode,
    health::{Observation, Reason},
    pci::PciAddress,
};
use windlass_host::{Host, PciFunction, external::Late};

use super::{graphics, scan_pool::ScanPool};

/// Failure of a device: reason and detail.
pub(super) type Failure = (Reason, String);

/// Reader of device conditions from files that firmware answers, possibly never during a reset.
#[derive(Debug, Default)]
pub(super) struct ConditionReader {
    pool: ScanPool<PciAddress, Option<Failure>>,
}

/// The device missed its deadline.
pub(super) fn no_answer() -> Failure {
    (Reason::NotReady, "it does not answer".to_owned())
}

pub(super) fn observation(failure: Option<Failure>) -> Observation {
    failure.map_or(Observation::Passed, |(reason, detail)| Observation::Failed(reason, detail))
}

/// No driver, or the wrong one, is bound.
pub(super) fn of_driver(function: &PciFunction, drivers: &[&str]) -> Option<Failure> {
    let wanted = drivers.join(" or ");
    let detail = match function.driver.as_deref() {
        Some(driver) if drivers.contains(&driver) => return None,
        Some(other) => format!("its driver is {other}, not {wanted}"),
        None => format!("it has no driver: {wanted} is not bound"),
    };
    Some((Reason::DriverUnbound, detail))
}

/// A node is missing, or the driver made no render node.
pub(super) fn of_nodes(host: &Host, nodes: &[DeviceNode]) -> Option<Failure> {
    if !nodes.iter().any(graphics::is_render) {
        return Some((Reason::NodeMissing, "its driver made no render node".to_owned()));
    }
    let missing = nodes.iter().find(|node| !host.has(&node.path))?;
    Some((Reason::NodeMissing, format!("{} is not there", missing.path.display())))
}

/// Overheating: a sensor at its emergency limit, or without one above its critical limit. At the critical
/// limit some devices hold by design: AMD GPUs throttle there.
pub(super) fn of_heat(host: &Host, folder: &Path) -> Option<Failure> {
    let monitors = folder.join("hwmon");
    let mut monitors = host.names(&monitors).into_iter().map(|name| monitors.join(name));
    monitors.find_map(|monitor| {
        let sensors: BTreeSet<_> =
            host.names(&monitor).iter().filter_map(|name| sensor_of(name)).collect();
        sensors.into_iter().find_map(|sensor| hot_sensor(host, &monitor, &sensor))
    })
}

/// Prefix of a sensor's files, `temp1_`.
fn sensor_of(file: &str) -> Option<String> {
    let end = file.find('_').filter(|_| file.starts_with("temp"))?;
    Some(file[..=end].to_owned())
}

/// Reads one sensor. Values are millidegrees (`Documentation/hwmon/sysfs-interface.rst`).
fn hot_sensor(host: &Host, monitor: &Path, sensor: &str) -> Option<Failure> {
    let millidegrees =
        |file: &str| host.text(monitor.join(format!("{sensor}{file}")))?.parse::<i64>().ok();
    let limit = |file: &str| millidegrees(file).filter(|limit| *limit > 0);
    let now = millidegrees("input")?;
    let (limit, is_hot) = match limit("emergency") {
        Some(emergency) => (emergency, now >= emergency),
        None => limit("crit").map(|critical| (critical, now > critical))?,
    };
    let label = host.text(monitor.join(format!("{sensor}label"))).unwrap_or_default();
    let detail = format!("{label} {} °C, limit {} °C", now / 1_000, limit / 1_000);
    is_hot.then(|| (Reason::OutOfBounds, detail.trim().to_owned()))
}

// === impl ConditionReader ===

impl ConditionReader {
    /// Failure of each function, read with a deadline per device.
    pub(super) fn of(
        &mut self,
        host: &Host,
        functions: &[PciFunction],
        read: fn(&Host, &Path) -> Option<Failure>,
    ) -> BTreeMap<PciAddress, Failure> {
        let bound = functions.iter().filter(|function| function.driver.is_some());
        let failures = bound.filter_map(|function| {
            let (host, folder) = (host.clone(), function.folder());
            let answer = self.pool.call(function.address, move || read(&host, &folder));
            Some((function.address, answer.unwrap_or_else(|Late| Some(no_answer()))?))
        });
        let failures = failures.collect();
        self.pool.end_scan(|address| functions.iter().any(|it| it.address == *address));
        failures
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_device_is_too_hot_where_it_shuts_down_and_not_where_it_slows_down() {
        for (critical, emergency, now, expected) in [
            ("100000", "105000", "100000", None),
            ("100000", "105000", "104000", None),
            ("100000", "105000", "105000", Some("junction 105 °C, limit 105 °C")),
            ("100000", "", "100000", None),
            ("100000", "0", "100001", Some("junction 100 °C, limit 100 °C")),
            ("", "90000", "91000", Some("junction 91 °C, limit 90 °C")),
            ("0", "", "91000", None),
        ] {
            let root = tempfile::tempdir().expect("a temporary folder");
            let monitor = root.path().join("sys/gpu/hwmon/hwmon3");
            fs::create_dir_all(&monitor).expect("made");
            let files = [("crit", critical), ("emergency", emergency), ("input", now)];
            let told = files.iter().filter(|(_, text)| !text.is_empty());
            for (file, text) in told.chain(&[("label", "junction")]) {
                fs::write(monitor.join(format!("temp2_{file}")), text).expect("written");
            }
            let hot = of_heat(&Host::new(root.path(), "/"), Path::new("/sys/gpu"));
            assert_eq!(
                hot.map(|(_, detail)| detail).as_deref(),
                expected,
                "{critical} {emergency}"
            );
        }
    }
}
