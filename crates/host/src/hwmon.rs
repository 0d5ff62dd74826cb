//! Sensors of a device in its hardware monitor, in the units of `Documentation/hwmon/sysfs-interface.rst`.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use windlass_core::telemetry::Sample;

use crate::Host;

/// Hardware monitor that a device's own driver registered.
#[derive(Debug)]
pub struct Monitor<'a> {
    host: &'a Host,
    folder: PathBuf,
}

// === impl Monitor ===

impl<'a> Monitor<'a> {
    /// The monitor with the name of one of these drivers. Other monitors belong to parts of the device, such as
    /// `i915_gt0`.
    pub fn find(host: &'a Host, device: &Path, drivers: &[&str]) -> Option<Self> {
        let mut folders_by_name =
            monitors(host, device).map(|folder| (host.read_text(folder.join("name")), folder));
        let is_own = |name: &str| drivers.contains(&name);
        let (_, folder) = folders_by_name.find(|(name, _)| name.as_deref().is_some_and(is_own))?;
        Some(Self { host, folder })
    }

    /// Temperature, power and energy, where the monitor has the sensors.
    pub fn sample(&self) -> Sample {
        Sample {
            // AMD: the edge sensor, or the junction of cards without one. Intel: the package, which is second under xe.
            temperature_celsius: self
                .first_number(["temp1_input", "temp2_input"])
                .and_then(celsius),
            memory_temperature_celsius: self.memory_celsius(),
            power_milliwatts: self.first_number(["power1_average", "power1_input"]).map(thousandth),
            power_limit_milliwatts: self
                .first_number(["power1_cap", "power1_max"])
                .filter(|limit| *limit > 0)
                .map(thousandth),
            // The sensor of the card, or else of the package.
            energy_millijoules: self
                .first_number(["energy1_input", "energy2_input"])
                .map(thousandth),
            ..Sample::default()
        }
    }

    /// Value of a clock file, in hertz.
    pub fn clock(&self, file: &str) -> Option<u64> {
        number(self.host, &self.folder.join(file))
    }

    /// Temperature of the memory: AMD's third sensor, on cards whose memory has one.
    fn memory_celsius(&self) -> Option<u32> {
        let label = self.host.read_text(self.folder.join("temp3_label"))?;
        number(self.host, &self.folder.join("temp3_input"))
            .filter(|_| label == "mem")
            .and_then(celsius)
    }

    /// Number in the first of these files that has one.
    fn first_number(&self, files: [&str; 2]) -> Option<u64> {
        files.iter().find_map(|file| number(self.host, &self.folder.join(file)))
    }
}

/// Folders of a device's monitors.
fn monitors(host: &Host, device: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let folder = device.join("hwmon");
    host.entry_names(&folder).into_iter().map(move |name| folder.join(name))
}

/// True for a device that its driver has powered down: reading its sensors would wake it
/// (`Documentation/ABI/testing/sysfs-devices-power`).
pub fn is_suspended(host: &Host, device: &Path) -> bool {
    host.read_text(device.join("power/runtime_status")).as_deref() == Some("suspended")
}

/// Number in a file; `None` for a negative one.
pub fn number(host: &Host, file: &Path) -> Option<u64> {
    host.read_text(file)?.parse().ok()
}

/// Percentage in a file; `None` above 100.
pub fn percent(host: &Host, file: &Path) -> Option<u32> {
    let percent = number(host, file).filter(|percent| *percent <= 100)?;
    u32::try_from(percent).ok()
}

fn celsius(millidegrees: u64) -> Option<u32> {
    u32::try_from(thousandth(millidegrees)).ok()
}

fn thousandth(number: u64) -> u64 {
    number / 1_000
}

/// Describes the first overheated sensor: one at its emergency limit, or, without such a limit, above its critical
/// limit. Some devices stay at the critical limit by design, such as AMD GPUs, which throttle there.
pub fn overheated(host: &Host, folder: &Path) -> Option<String> {
    monitors(host, folder).find_map(|monitor| {
        let sensors: BTreeSet<_> =
            host.entry_names(&monitor).iter().filter_map(|name| sensor_of(name)).collect();
        sensors.into_iter().find_map(|sensor| hot_sensor(host, &monitor, &sensor))
    })
}

/// Prefix of a sensor's files, `temp1_`.
fn sensor_of(file: &str) -> Option<String> {
    let end = file.find('_').filter(|_| file.starts_with("temp"))?;
    Some(file[..=end].to_owned())
}

/// Describes a sensor if it is overheated.
fn hot_sensor(host: &Host, monitor: &Path, sensor: &str) -> Option<String> {
    let millidegrees =
        |file: &str| host.read_text(monitor.join(format!("{sensor}{file}")))?.parse::<i64>().ok();
    let limit = |file: &str| millidegrees(file).filter(|limit| *limit > 0);
    let current = millidegrees("input")?;
    let (limit, is_hot) = match limit("emergency") {
        Some(emergency) => (emergency, current >= emergency),
        None => limit("crit").map(|critical| (critical, current > critical))?,
    };
    let label = host.read_text(monitor.join(format!("{sensor}label"))).unwrap_or_default();
    let detail = format!("{label} {} °C, limit {} °C", current / 1_000, limit / 1_000);
    is_hot.then(|| detail.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_suspended_device_is_recognised_by_its_status() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let (host, device) = (Host::new(root.path(), "/"), Path::new("/sys/gpu"));
        assert!(!is_suspended(&host, device), "a device without power management");
        let folder = root.path().join("sys/gpu/power");
        fs::create_dir_all(&folder).expect("made");
        for (status, expected) in [("active", false), ("suspended", true), ("suspending", false)] {
            fs::write(folder.join("runtime_status"), format!("{status}\n")).expect("written");
            assert_eq!(is_suspended(&host, device), expected, "{status}");
        }
    }

    #[test]
    fn the_drivers_own_monitor_is_read_and_missing_sensors_are_none() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let device = Path::new("/sys/gpu");
        let write = |file: &str, text: &str| {
            let path = root.path().join("sys/gpu/hwmon").join(file);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        };
        for (file, text) in [
            ("hwmon1/name", "i915_gt0"),
            ("hwmon1/energy1_input", "1"),
            ("hwmon2/name", "i915"),
            ("hwmon2/energy1_input", "7000999"),
            ("hwmon2/temp1_input", "-1000"),
            ("hwmon2/temp2_input", "41900"),
            ("hwmon2/power1_max", "0"),
        ] {
            write(file, text);
        }
        let host = Host::new(root.path(), "/");
        let monitor = Monitor::find(&host, device, &["i915", "xe"]).expect("a monitor");
        let expected = Sample {
            energy_millijoules: Some(7_000),
            temperature_celsius: Some(41),
            ..Sample::default()
        };
        assert_eq!(monitor.sample(), expected);
        assert!(Monitor::find(&host, device, &["amdgpu"]).is_none());
        write("busy", "101");
        assert_eq!(percent(&host, &device.join("hwmon/busy")), None);
    }

    #[test]
    fn a_device_is_overheated_at_its_emergency_limit_and_above_its_critical_one() {
        for (critical, emergency, current, expected) in [
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
            let files = [("crit", critical), ("emergency", emergency), ("input", current)];
            let present = files.iter().filter(|(_, text)| !text.is_empty());
            for (file, text) in present.chain(&[("label", "junction")]) {
                fs::write(monitor.join(format!("temp2_{file}")), text).expect("written");
            }
            let description = overheated(&Host::new(root.path(), "/"), Path::new("/sys/gpu"));
            assert_eq!(description.as_deref(), expected, "{critical} {emergency}");
        }
    }
}
