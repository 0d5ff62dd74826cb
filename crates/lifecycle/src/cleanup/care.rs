//! What is done to each device between two containers, by the configuration.

use std::{collections::BTreeMap, path::PathBuf};

use windlass_config::{Handover, Policy, Step, StepAction};
use windlass_core::{
    device::{Device, DeviceId},
    inventory::Inventory,
    nvlink::NvLinks,
};
use windlass_discovery::FpgaIdentity;
use windlass_host::template::{Missing, fill};

/// What is done to one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Care {
    /// Before a container starts with it.
    pub(crate) prepare: Vec<Step>,
    /// After the last container has let go of it.
    pub(crate) release: Vec<Step>,
    /// Its folder in sysfs, where steps may write.
    pub(crate) folder: Option<PathBuf>,
    /// What it has to say of itself once it is prepared, where it can.
    pub(crate) identity: Option<FpgaIdentity>,
    /// Why nothing may be done to it for now, so that no container starts with it.
    pub(crate) barred: Option<String>,
    /// Why no container starts with it, though it is released.
    pub(crate) unproven: Option<String>,
    /// Why it cannot be reset without harm to others.
    pub(crate) bound: Option<&'static str>,
}

/// The devices that something is done to.
pub type Demand = BTreeMap<DeviceId, Care>;

/// What is to be done to the devices of a node. One that is not there cannot be cared for, nor one that is
/// another node's, as `others` says.
pub fn demand(
    policy: &Policy,
    inventory: &Inventory,
    others: &dyn Fn(&Device) -> Option<String>,
) -> Demand {
    let care = |device: &Device| {
        let mut care = care(policy, device, inventory)?;
        care.barred = care.barred.or_else(|| others(device));
        Some((device.id.clone(), care))
    };
    inventory.devices.iter().filter_map(care).collect()
}

/// Whether something is done to a device before its containers start or after they let go.
pub fn is_cared_for(policy: &Policy, device: &Device) -> bool {
    handover(policy, device).is_some()
}

/// What a reset of a GPU would take others along in: NVLinks go down with it, over switches too.
fn bound(gpu: &Device, inventory: &Inventory) -> Option<&'static str> {
    let is_linked = |other: &Device| {
        let both = gpu.place.pci.zip(other.place.pci).filter(|_| other.id != gpu.id);
        both.is_some_and(|(ours, theirs)| {
            let ends = ((ours, &gpu.place.nvlinks), (theirs, &other.place.nvlinks));
            NvLinks::between(ends.0, ends.1).is_some()
        })
    };
    if gpu.kind.is_instance() {
        Some("it is a part of a GPU, which others may use")
    } else if gpu.partitioned {
        Some("it is in MIG mode")
    } else if inventory.devices.iter().any(is_linked) {
        Some("it has NVLinks to other GPUs, which would go down for whoever uses those")
    } else {
        None
    }
}

fn care(policy: &Policy, device: &Device, inventory: &Inventory) -> Option<Care> {
    let handover = handover(policy, device)?;
    let steps = filled_in(policy, handover, device);
    let gone = device.health.has_vanished();
    let barred = gone.then(|| "it is no longer on this node".to_owned());
    Some(match steps {
        Ok(care) => Care {
            barred: care.barred.clone().or(barred),
            bound: handover.resets().then(|| bound(device, inventory)).flatten(),
            ..care
        },
        Err(missing) => Care { barred: Some(missing.to_string()), ..Care::default() },
    })
}

fn filled_in(policy: &Policy, handover: &Handover, device: &Device) -> Result<Care, Missing> {
    let steps = |steps: &[Step]| -> Result<Vec<_>, _> {
        steps.iter().map(|step| filled(step, device)).collect()
    };
    let (prepare, release) = (steps(&handover.prepare)?, steps(&handover.release)?);
    let (mut identity, mut unproven) = (None, None);
    if device.family().is_programmed {
        identity = FpgaIdentity::of(&policy.families.fpga, device)?;
        unproven = identity.is_none().then(|| NEVER_SAID.to_owned());
    }
    // Without a step that cleans it, it would be cleaned by what nobody could prove.
    let barred = unproven.clone().filter(|_| release.is_empty());
    let folder = folder(device);
    Ok(Care { prepare, release, folder, identity, barred, unproven, bound: None })
}

/// Where the device has its files: what is on PCI has its function's.
fn folder(device: &Device) -> Option<PathBuf> {
    let function = || device.place.pci.map(|pci| format!("/sys/bus/pci/devices/{pci}").into());
    device.folder.clone().or_else(function)
}

const NEVER_SAID: &str =
    "it never said what it is, so that nobody could see whether it was programmed";

/// What is said of the device's source, if anything is to be done to its devices.
fn handover<'a>(policy: &'a Policy, device: &Device) -> Option<&'a Handover> {
    let steps = policy.handover(&device.source)?;
    (!steps.prepare.is_empty() || !steps.release.is_empty()).then_some(steps)
}

/// A step with what the device puts into it.
fn filled(step: &Step, device: &Device) -> Result<Step, Missing> {
    let fill = |text: &String| fill(text, device);
    let action = match &step.action {
        StepAction::Http(url) => StepAction::Http(fill(url)?),
        StepAction::Command(words) => {
            StepAction::Command(words.iter().map(fill).collect::<Result<_, _>>()?)
        }
        StepAction::Write { file, text } => {
            StepAction::Write { file: file.clone(), text: fill(text)? }
        }
        same @ (StepAction::Processes(_)
        | StepAction::Memory { .. }
        | StepAction::Overwrite
        | StepAction::Reset(_)
        | StepAction::Link(_)) => same.clone(),
    };
    Ok(Step { action, timeout: step.timeout })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;
    use windlass_config::{Find, SourceRule};
    use windlass_core::{
        device::DeviceKind,
        health::{HealthTracker, Observation, Reason},
    };

    use super::*;

    fn policy(action: StepAction) -> Policy {
        let find = Find::Endpoints(Vec::new());
        let step = Step { action, timeout: Duration::from_secs(1) };
        let handover = Handover { prepare: vec![step], release: Vec::new() };
        let rule = SourceRule::new("boards".parse().expect("a name"), find);
        Policy { sources: vec![SourceRule { handover, ..rule }], ..Policy::default() }
    }

    fn board() -> Device {
        let (id, source) = ("boards-1".parse(), "boards".parse());
        let (id, source) = (id.expect("valid"), source.expect("valid"));
        let new = Device::new(id, DeviceKind::Other, source, Timestamp::UNIX_EPOCH);
        Device { origin: Some("10.0.0.1".to_owned()), ..new }
    }

    fn care_of(policy: &Policy, device: Device) -> Care {
        let id = device.id.clone();
        let inventory = Inventory { devices: vec![device], ..Inventory::default() };
        demand(policy, &inventory, &|_| None).remove(&id).expect("cared for")
    }

    #[test]
    fn a_device_puts_into_its_steps_what_it_has() {
        let url = |text: &str| StepAction::Http(format!("http://{text}:6001/chip_reset"));
        let care = care_of(&policy(url("{endpoint}")), board());
        assert_eq!(care.prepare[0].action, url("10.0.0.1"));
        let words = |id: &str| StepAction::Command(vec!["/bin/reset".to_owned(), id.to_owned()]);
        let care = care_of(&policy(words("{id}")), board());
        assert_eq!(care.prepare[0].action, words("boards-1"));
        let care = care_of(&policy(url("{pci}")), board());
        assert_eq!(care.barred.as_deref(), Some("it has no {pci}"));
    }

    #[test]
    fn nothing_is_done_to_what_is_gone_or_anothers() {
        let policy = policy(StepAction::Http("http://b/".to_owned()));
        let mut tracker = HealthTracker::new(Duration::ZERO, Timestamp::UNIX_EPOCH);
        let gone = Observation::Failed(Reason::Vanished, String::new());
        tracker.observe(&gone, Timestamp::UNIX_EPOCH);
        let care = care_of(&policy, Device { health: tracker.health().clone(), ..board() });
        assert_eq!(care.barred.as_deref(), Some("it is no longer on this node"));
        let inventory = Inventory { devices: vec![board()], ..Inventory::default() };
        let theirs = demand(&policy, &inventory, &|_| Some("another node's".to_owned()));
        let barred = theirs.into_values().next().and_then(|care| care.barred);
        assert_eq!(barred.as_deref(), Some("another node's"));
    }

    #[test]
    fn steps_write_where_the_devices_files_are() {
        let write = StepAction::Write { file: "reset".into(), text: "1".to_owned() };
        let folder = Some("/sys/devices/virtual/misc/b".into());
        let told = Device { folder: folder.clone(), ..board() };
        assert_eq!(care_of(&policy(write.clone()), told).folder, folder);
        assert_eq!(
            care_of(&policy(write), board()).folder,
            None,
            "a board on the network has none"
        );
    }
}
