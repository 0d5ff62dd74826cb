//! Configured device sources.
//!
//! ```text
//!   find ────────────> match ────────────> unit ────────────> build
//!   candidates         selected            groups             devices with ids,
//!                      candidates                             attributes, edits
//! ```

mod builder;
mod diagnose;
mod endpoints;
mod file_attributes;
mod files;
mod find;
mod identity;
mod nodes;
mod probe;
mod sysfs;
mod unit;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::sync::Notify;
use windlass_config::{HostPaths, Policy, SourceRule};
use windlass_core::{
    device::{Device, DeviceId, SourceName},
    health::{Observation, Reason},
    inventory::SourceState,
};
use windlass_host::{Host, usb::Serials};

pub use diagnose::{CandidateVerdict, SourceDiagnosis, diagnose};
pub(super) use nodes::matching_nodes;

use self::{
    builder::{BuiltDevice, DeviceBuilder},
    file_attributes::FileAttributes,
    find::{Candidate, FindResult},
    nodes::Nodes,
    probe::{ProbeHandle, ProbeSpec, ProbeSpecs, Prober},
};
use super::{
    facts::count_text,
    scanner::{Scan, Scanner},
};

/// Scanner of all configured sources.
#[derive(Debug)]
pub(super) struct ConfiguredSources {
    rules: Vec<SourceRule>,
    /// The kubelet's folder, which is never mounted into containers.
    kubelet_dir: PathBuf,
    /// Last driver of each selected candidate, by source and identity. A candidate that loses its driver may no
    /// longer match the selector, although the device is still present.
    drivers: BTreeMap<SourceName, BTreeMap<String, String>>,
    /// USB devices by serial number.
    serials: Serials,
    /// Attributes read from the devices' files.
    file_attributes: FileAttributes,
    /// Default probe interval.
    probe_interval: Duration,
    probes: ProbeHandle,
}

#[derive(Clone, Copy)]
struct ScanEnv<'a> {
    host: &'a Host,
    serials: &'a Serials,
    kubelet_dir: &'a Path,
}

/// Result of a source's scan: its devices, and notes on skipped entries.
#[derive(Default)]
struct SourceScan {
    devices: Vec<BuiltDevice>,
    notes: Vec<String>,
    /// Error of the selector, other than a missing attribute.
    selector_error: Option<String>,
}

// === impl ConfiguredSources ===

impl ConfiguredSources {
    /// Creates the scanner, and the task that probes its devices.
    pub(super) fn new(paths: &HostPaths, policy: &Policy, host: &Host) -> (Self, Prober) {
        let (handle, prober) = probe::channel(host.clone());
        let sources = Self {
            rules: policy.sources.clone(),
            kubelet_dir: paths.kubelet_dir.clone(),
            drivers: BTreeMap::new(),
            serials: Serials::default(),
            file_attributes: FileAttributes::default(),
            probe_interval: policy.health.probe_interval,
            probes: handle,
        };
        (sources, prober)
    }

    fn rule(&self, source: &SourceName) -> Option<&SourceRule> {
        self.rules.iter().find(|rule| rule.name == *source)
    }

    /// Health of a device. Unusable devices are not probed.
    fn observe(
        &self,
        rule: &SourceRule,
        built_device: &BuiltDevice,
        specs: &mut ProbeSpecs,
    ) -> Observation {
        let device = &built_device.device;
        if let Some((reason, detail)) = built_device.failure.clone() {
            return Observation::Failed(reason, detail);
        }
        let Some(probe) = &rule.probe else { return Observation::Passed };
        match ProbeSpec::resolve(probe, device, self.probe_interval) {
            Ok(None) => Observation::Passed,
            Ok(Some(spec)) => {
                specs.insert(device.id.clone(), spec);
                self.probes.observation(device)
            }
            Err(missing) => {
                Observation::Failed(Reason::ProbeFailed, format!("it cannot be probed: {missing}"))
            }
        }
    }
}

impl Scanner for ConfiguredSources {
    fn names(&self) -> Vec<SourceName> {
        self.rules.iter().map(|rule| rule.name.clone()).collect()
    }

    fn folders(&self) -> &'static [&'static str] {
        &[]
    }

    fn scan(&mut self, host: &Host) -> Scan {
        let (mut scan, mut specs) = (Scan::default(), ProbeSpecs::new());
        self.serials.refresh(host);
        for rule in &self.rules {
            let drivers = self.drivers.entry(rule.name.clone()).or_default();
            let env = ScanEnv { host, serials: &self.serials, kubelet_dir: &self.kubelet_dir };
            let source_scan = scan_source(rule, env, &mut self.file_attributes, drivers);
            let state = match &source_scan {
                Ok(source_scan) => source_scan.state(),
                Err(reason) => {
                    scan.failed_sources.insert(rule.name.clone());
                    SourceState::Failing(reason.clone())
                }
            };
            scan.states.insert(rule.name.clone(), state);
            for built_device in source_scan.unwrap_or_default().devices {
                let observation = self.observe(rule, &built_device, &mut specs);
                scan.devices.push((built_device.device, observation));
            }
        }
        self.file_attributes.end_scan();
        self.probes.set(specs);
        scan
    }

    fn apply_policy(&mut self, policy: &Policy) {
        if self.rules != policy.sources {
            self.rules.clone_from(&policy.sources);
            self.drivers.clear();
        }
        self.probe_interval = policy.health.probe_interval;
    }

    fn change_notifier(&self) -> Option<Arc<Notify>> {
        Some(self.probes.change_notifier())
    }

    fn quiet_period(&self, device: &Device) -> Option<Duration> {
        self.rule(&device.source)?.probe.as_ref()?.quiet_period
    }
}

/// Scans for one source's devices.
fn scan_source(
    rule: &SourceRule,
    ScanEnv { host, serials, kubelet_dir }: ScanEnv<'_>,
    file_attributes: &mut FileAttributes,
    drivers: &mut BTreeMap<String, String>,
) -> Result<SourceScan, String> {
    let FindResult { mut candidates, notes } = find::find(rule, host, serials)?;
    file_attributes.add_to(host, rule, &mut candidates);
    let nodes = Nodes::new(host, serials);
    let builder = DeviceBuilder { host, rule, kubelet_dir, nodes: &nodes };
    let mut source_scan = SourceScan { notes, ..SourceScan::default() };
    let selected = source_scan.select(&builder, candidates, drivers);
    let (groups, leftover) = unit::groups(rule, selected);
    source_scan.notes.extend(leftover);
    let (mut ids, mut owners) = (BTreeSet::new(), Owners::new());
    for (index, group) in (0..).zip(&groups) {
        let Some(mut built_device) = builder.build(index, group) else { continue };
        if ids.insert(built_device.device.id.clone()) {
            reserve_nodes(&mut owners, &mut built_device.device);
            source_scan.devices.push(built_device);
        } else {
            source_scan.notes.push(format!("two devices have the name {}", built_device.device.id));
        }
    }
    Ok(source_scan)
}

/// Owners of unshared nodes.
type Owners = BTreeMap<PathBuf, DeviceId>;

/// Withholds a device whose unshared node belongs to another device, so that no node has two owners.
fn reserve_nodes(owners: &mut Owners, device: &mut Device) {
    if device.withheld.is_some() {
        return;
    }
    let nodes: Vec<_> = device.own_nodes().collect();
    let conflict = nodes.iter().find_map(|node| Some((node, owners.get(&node.path)?)));
    if let Some((node, owner)) = conflict {
        let node = node.path.display();
        let reason = format!("{node} also belongs to {owner}: group them, or write shared: true");
        device.withheld = Some(reason);
        return;
    }
    owners.extend(nodes.into_iter().map(|node| (node.path.clone(), device.id.clone())));
}

// === impl SourceScan ===

impl SourceScan {
    /// Candidates that the selector matches. A missing attribute is no match, since buses hold many kinds of
    /// devices. Any other evaluation error is reported.
    fn select(
        &mut self,
        builder: &DeviceBuilder<'_>,
        candidates: Vec<Candidate>,
        drivers: &mut BTreeMap<String, String>,
    ) -> Vec<Candidate> {
        let Some(expression) = &builder.rule.expression else { return candidates };
        let (mut selected, mut missing_attribute, total) = (Vec::new(), None, candidates.len());
        for (index, mut candidate) in (0..).zip(candidates) {
            let driver = candidate.text("driver").map(str::to_owned);
            match expression.matches(&builder.preview(index, &candidate)) {
                Ok(true) => {
                    let identity = candidate.identity.clone();
                    drivers.extend(driver.map(|driver| (identity, driver)));
                    selected.push(candidate);
                    continue;
                }
                Ok(false) => {}
                Err(error) if error.is_missing_attribute() => {
                    missing_attribute.get_or_insert(error);
                }
                Err(error) => drop(self.selector_error.get_or_insert_with(|| error.to_string())),
            }
            if let Some(last_driver) = drivers.get(&candidate.identity).filter(|_| driver.is_none())
            {
                let text = format!("its driver {last_driver} is no longer bound");
                candidate.failure = Some((Reason::DriverUnbound, text));
                selected.push(candidate);
            }
        }
        if selected.is_empty() && total > 0 {
            let missing_attribute =
                missing_attribute.map(|error| format!(", {error}")).unwrap_or_default();
            self.notes.push(format!("none of {total} matches{missing_attribute}"));
        }
        selected
    }

    fn state(&self) -> SourceState {
        let mut notes = self.notes.iter().take(MAX_NOTES).cloned().collect::<Vec<_>>();
        if self.notes.len() > MAX_NOTES {
            notes.push(format!("and {} more", self.notes.len() - MAX_NOTES));
        }
        match (&self.selector_error, self.devices.len()) {
            (Some(error), _) => SourceState::Failing(error.clone()),
            (None, 0) if notes.is_empty() => SourceState::Absent("nothing matches".to_owned()),
            (None, 0) => SourceState::Absent(notes.join("; ")),
            (None, count) => {
                notes.insert(0, count_text(count, "device"));
                SourceState::Ready(notes.join("; "))
            }
        }
    }
}

/// Limit on notes in a source's state; further ones are only counted.
const MAX_NOTES: usize = 3;
