//! RDMA-capable network interfaces, from `/sys/class/infiniband`.
//!
//! The source tells where they sit, so that a GPU's neighbours are known, and whether their link is
//! up. It reads a few files per interface at each look.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use tokio::{
    task::spawn_blocking,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use windlass_core::{
    attribute::{AttributeName, AttributeValue, Attributes},
    device::{Device, DeviceId, DeviceKind},
    health::{Health, HealthTracker, Observation, Reason},
    inventory::SourceState,
    pci::{PciAddress, PciePath},
};

use super::{PolicyWatch, Publisher, SourceSnapshot, log};
use crate::{clock::Clock, host::Host};

/// The source.
pub(super) struct Nics {
    quiet_period: Duration,
    host: Host,
    clock: Clock,
    trackers: BTreeMap<DeviceId, HealthTracker>,
    devices: BTreeMap<DeviceId, Device>,
}

const CLASS: &str = "/sys/class/infiniband";
const VERBS: &str = "/sys/class/infiniband_verbs";
const DOMAIN: &str = "windlass.dev";

/// What `ports/<n>/state` says of a port that carries traffic (`enum ib_port_state`, IBTA).
const ACTIVE: &str = "ACTIVE";

// === impl Nics ===

impl Nics {
    pub(super) fn new(host: Host, clock: Clock) -> Self {
        let (quiet_period, trackers, devices) = Default::default();
        Self { quiet_period, host, clock, trackers, devices }
    }

    /// Looks at once, at the probe interval, and when there is another policy, until stopped. Some of
    /// the files are answered by the device's firmware: a look that takes too long is waited for, and
    /// said.
    pub(super) async fn run(
        mut self,
        mut policy: PolicyWatch,
        to: Publisher,
        stop: CancellationToken,
    ) {
        loop {
            self.set_quiet_period(policy.current().quiet_period);
            let deadline = policy.current().call_deadline;
            let mut look = spawn_blocking(move || self.looked());
            let in_time = timeout(deadline, &mut look).await;
            let looked = if let Ok(looked) = in_time {
                looked
            } else {
                to.publish_late(format!("{CLASS} did not answer within {deadline:?}"));
                tokio::select! {
                    () = stop.cancelled() => return,
                    looked = look => looked,
                }
            };
            let (nics, snapshot) = looked.expect("looking neither panics nor is cancelled");
            self = nics;
            to.publish(snapshot);
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(policy.current().probe_interval) => {}
                () = policy.changed() => {}
            }
        }
    }

    fn set_quiet_period(&mut self, quiet_period: Duration) {
        self.quiet_period = quiet_period;
        self.trackers.values_mut().for_each(|tracker| tracker.set_quiet_period(quiet_period));
    }

    fn looked(mut self) -> (Self, SourceSnapshot) {
        let snapshot = self.look();
        (self, snapshot)
    }

    fn look(&mut self) -> SourceSnapshot {
        let mut names = self.host.names(CLASS);
        // mlx5_10 comes after mlx5_9.
        names.sort_by_key(|name| (name.len(), name.clone()));
        let present: Vec<_> = (0..).zip(&names).filter_map(|(i, name)| self.nic(i, name)).collect();
        for (device, observation) in &present {
            self.observe(&device.id, observation);
            self.devices.insert(device.id.clone(), device.clone());
        }
        let gone: Vec<_> = self
            .devices
            .keys()
            .filter(|id| present.iter().all(|(device, _)| device.id != **id))
            .cloned()
            .collect();
        for id in gone {
            let vanished = "no longer in /sys/class/infiniband".to_owned();
            self.observe(&id, &Observation::Failed(Reason::Vanished, vanished));
        }
        self.snapshot(names.len())
    }

    fn observe(&mut self, id: &DeviceId, observation: &Observation) {
        let now = self.clock.now();
        let quiet = self.quiet_period;
        let tracker =
            self.trackers.entry(id.clone()).or_insert_with(|| HealthTracker::new(quiet, now));
        if let Some(from) = tracker.observe(observation, now) {
            log::health_changed(id, from, tracker.health());
        }
    }

    fn snapshot(&self, present: usize) -> SourceSnapshot {
        let with_health = |(id, device): (&DeviceId, &Device)| {
            let health = self.trackers.get(id)?.health().clone();
            Some(Device { health, ..device.clone() })
        };
        SourceSnapshot {
            state: match present {
                0 => SourceState::Absent(format!("no RDMA interfaces in {CLASS}")),
                several => SourceState::Ready(format!("{several} RDMA interfaces")),
            },
            simulated: self.host.simulated(),
            devices: self.devices.iter().filter_map(with_health).collect(),
        }
    }

    /// An interface and the state of its link; `None` for one without a PCI function, such as
    /// software RDMA.
    fn nic(&self, index: u32, name: &str) -> Option<(Device, Observation)> {
        let folder = format!("{CLASS}/{name}");
        let address = self.address(&folder)?;
        let function = self.host.pci_function(address);
        let device = Device {
            id: format!("nic-{}", address.to_string().replace([':', '.'], "-")).parse().ok()?,
            kind: DeviceKind::Nic,
            index,
            health: Health::unknown(self.clock.now()),
            attributes: self
                .attributes(name, &folder)
                .into_iter()
                .chain(function.attributes())
                .collect(),
            capacity: BTreeMap::new(),
            place: function.place(),
            nodes: self.nodes(name),
            parent: None,
            part: None,
            partitioned: false,
        };
        Some((device, self.link(&folder)))
    }

    /// `device` points to the PCI function, the last component of its path.
    fn address(&self, folder: &str) -> Option<PciAddress> {
        let resolved = self.host.path(format!("{folder}/device")).canonicalize().ok()?;
        PciePath::from_sysfs(resolved.to_str()?)?;
        resolved.file_name()?.to_str()?.parse().ok()
    }

    fn attributes(&self, name: &str, folder: &str) -> Attributes {
        let layer = self.host.text(format!("{folder}/ports/1/link_layer"));
        let netdev = self.host.names(format!("{folder}/device/net")).into_iter().next();
        let all = [
            ("type", Some("nic".to_owned())),
            ("rdmaDevice", Some(name.to_owned())),
            ("linkLayer", layer),
            ("ifName", netdev),
            ("rate", self.host.text(format!("{folder}/ports/1/rate"))),
        ];
        all.into_iter()
            .filter_map(|(key, value)| {
                Some((AttributeName::new(DOMAIN, key), AttributeValue::string(value?)))
            })
            .collect()
    }

    fn link(&self, folder: &str) -> Observation {
        match self.host.text(format!("{folder}/ports/1/state")) {
            Some(state) if state.ends_with(ACTIVE) => Observation::Passed,
            Some(state) => Observation::Failed(Reason::LinkDown, format!("port 1 is {state}")),
            None => Observation::Failed(Reason::ProbeFailed, "port 1 has no state".to_owned()),
        }
    }

    /// The verbs device, and the connection manager that all share.
    fn nodes(&self, name: &str) -> Vec<PathBuf> {
        let verbs = self.host.names(VERBS).into_iter().find(|verbs| {
            self.host.text(format!("{VERBS}/{verbs}/ibdev")).as_deref() == Some(name)
        });
        let verbs = verbs.map(|verbs| PathBuf::from(format!("/dev/infiniband/{verbs}")));
        verbs.into_iter().collect()
    }
}
