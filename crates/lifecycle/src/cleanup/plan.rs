//! Cleanup plan of each device: the configured steps, and obstacles to them.

use std::{collections::BTreeMap, path::PathBuf};

use windlass_config::{CleanupSteps, Policy, Step, StepAction};
use windlass_core::{
    device::{Device, DeviceId},
    inventory::Inventory,
    nvlink::NvLinks,
};
use windlass_discovery::{FpgaIdentity, cleanup_steps};
use windlass_host::template::{MissingValue, fill};

/// Configured steps of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CleanupPlan {
    /// Steps before a container starts.
    pub(crate) prepare: Vec<Step>,
    /// Steps after the last release.
    pub(crate) release: Vec<Step>,
    /// The device's sysfs folder, in which steps may write.
    pub(crate) folder: Option<PathBuf>,
    /// Required identity after preparation, for a programmable device.
    pub(crate) identity: Option<FpgaIdentity>,
    /// Reason why no step may run now. No container starts.
    pub(crate) blocked_reason: Option<String>,
    /// Reason why preparation cannot be verified. No container starts, but release steps run.
    pub(crate) unverifiable_reason: Option<String>,
    /// Reason why a reset would affect other devices, so that a reset step fails.
    pub(crate) reset_conflict: Option<&'static str>,
}

/// Plans of all devices with steps.
pub type CleanupPlans = BTreeMap<DeviceId, CleanupPlan>;

/// Plans for a node's devices. A vanished device is blocked, and so is one for which `other_owner` returns a reason: it
/// belongs to another node.
pub fn plans(
    policy: &Policy,
    inventory: &Inventory,
    other_owner: &dyn Fn(&Device) -> Option<String>,
) -> CleanupPlans {
    let plan = |device: &Device| {
        let mut plan = plan(policy, device, inventory)?;
        plan.blocked_reason = plan.blocked_reason.or_else(|| other_owner(device));
        Some((device.id.clone(), plan))
    };
    inventory.devices.iter().filter_map(plan).collect()
}

/// True if any step is configured for the device.
pub fn is_configured(policy: &Policy, device: &Device) -> bool {
    configured_steps(policy, device).is_some()
}

/// Reason why a reset of the GPU would affect others. A reset also takes down NVLinks, those to switches included.
fn reset_conflict(gpu: &Device, inventory: &Inventory) -> Option<&'static str> {
    let is_linked = |other: &Device| {
        let addresses = gpu.place.pci.zip(other.place.pci).filter(|_| other.id != gpu.id);
        addresses.is_some_and(|(own_address, other_address)| {
            let (own_address, other) =
                ((own_address, &gpu.place.nvlinks), (other_address, &other.place.nvlinks));
            NvLinks::between(own_address, other).is_some()
        })
    };
    if gpu.kind.is_mig_instance() {
        Some("it is a part of a GPU, which others may use")
    } else if gpu.partitioned {
        Some("it is in MIG mode")
    } else if inventory.devices.iter().any(is_linked) {
        Some("a reset would also take down its NVLinks to other GPUs")
    } else {
        None
    }
}

fn plan(policy: &Policy, device: &Device, inventory: &Inventory) -> Option<CleanupPlan> {
    let steps = configured_steps(policy, device)?;
    let mut plan = with_values(policy, steps, device).unwrap_or_else(|missing| CleanupPlan {
        blocked_reason: Some(missing.to_string()),
        ..CleanupPlan::default()
    });
    if plan.blocked_reason.is_none() && device.health.has_vanished() {
        plan.blocked_reason = Some("it is no longer on this node".to_owned());
    }
    if steps.resets() {
        plan.reset_conflict = reset_conflict(device, inventory);
    }
    Some(plan)
}

fn with_values(
    policy: &Policy,
    steps: &CleanupSteps,
    device: &Device,
) -> Result<CleanupPlan, MissingValue> {
    let with_device_values = |steps: &[Step]| -> Result<Vec<_>, _> {
        steps.iter().map(|step| with_step_values(step, device)).collect()
    };
    let (prepare, release) =
        (with_device_values(&steps.prepare)?, with_device_values(&steps.release)?);
    let (mut identity, mut unverifiable_reason) = (None, None);
    if device.family().is_programmable {
        identity = FpgaIdentity::for_device(&policy.families.fpga, device)?;
        unverifiable_reason = identity.is_none().then(|| UNKNOWN_IDENTITY.to_owned());
    }
    // Without release steps, only preparation could clean the device, and it cannot be verified.
    let blocked_reason = unverifiable_reason.clone().filter(|_| release.is_empty());
    let folder = folder(device);
    Ok(CleanupPlan {
        prepare,
        release,
        folder,
        identity,
        blocked_reason,
        unverifiable_reason,
        reset_conflict: None,
    })
}

/// The device's sysfs folder: its own, or that of its PCI function.
fn folder(device: &Device) -> Option<PathBuf> {
    let function = || device.place.pci.map(|pci| format!("/sys/bus/pci/devices/{pci}").into());
    device.folder.clone().or_else(function)
}

const UNKNOWN_IDENTITY: &str = "its identity is unknown, so programming it cannot be verified";

/// Configured steps of the device's source, if any.
fn configured_steps<'a>(policy: &'a Policy, device: &Device) -> Option<&'a CleanupSteps> {
    let steps = cleanup_steps(policy, &device.source)?;
    (!steps.prepare.is_empty() || !steps.release.is_empty()).then_some(steps)
}

fn with_step_values(step: &Step, device: &Device) -> Result<Step, MissingValue> {
    let fill = |text: &String| fill(text, device);
    let action = match &step.action {
        StepAction::Http(url) => StepAction::Http(fill(url)?),
        StepAction::Command(words) => {
            StepAction::Command(words.iter().map(fill).collect::<Result<_, _>>()?)
        }
        StepAction::Write { file, text } => {
            StepAction::Write { file: file.clone(), text: fill(text)? }
        }
        unchanged @ (StepAction::Processes(_)
        | StepAction::Memory { .. }
        | StepAction::Overwrite
        | StepAction::Reset(_)
        | StepAction::Link(_)) => unchanged.clone(),
    };
    Ok(Step { action, timeout: step.timeout })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;
    use windlass_config::{DiscoveryRule, SourceRule};
    use windlass_core::{
        device::DeviceKind,
        health::{HealthTracker, Observation, Reason},
    };

    use super::*;

    fn policy(action: StepAction) -> Policy {
        let find = DiscoveryRule::Endpoints(Vec::new());
        let step = Step { action, timeout: Duration::from_secs(1) };
        let cleanup = CleanupSteps { prepare: vec![step], release: Vec::new() };
        let rule = SourceRule::new("boards".parse().expect("a name"), find);
        Policy { sources: vec![SourceRule { cleanup, ..rule }], ..Policy::default() }
    }

    fn board() -> Device {
        let (id, source) = ("boards-1".parse(), "boards".parse());
        let (id, source) = (id.expect("valid"), source.expect("valid"));
        let device = Device::new(id, DeviceKind::Other, source, Timestamp::UNIX_EPOCH);
        Device { origin: Some("10.0.0.1".to_owned()), ..device }
    }

    fn plan_of(policy: &Policy, device: Device) -> CleanupPlan {
        let id = device.id.clone();
        let inventory = Inventory { devices: vec![device], ..Inventory::default() };
        plans(policy, &inventory, &|_| None).remove(&id).expect("planned")
    }

    #[test]
    fn placeholders_of_steps_get_the_devices_values() {
        let url = |text: &str| StepAction::Http(format!("http://{text}:6001/chip_reset"));
        let plan = plan_of(&policy(url("{endpoint}")), board());
        assert_eq!(plan.prepare[0].action, url("10.0.0.1"));
        let command = |id: &str| StepAction::Command(vec!["/bin/reset".to_owned(), id.to_owned()]);
        let plan = plan_of(&policy(command("{id}")), board());
        assert_eq!(plan.prepare[0].action, command("boards-1"));
        let plan = plan_of(&policy(url("{pci}")), board());
        assert_eq!(plan.blocked_reason.as_deref(), Some("it has no {pci}"));
    }

    #[test]
    fn a_vanished_device_and_another_nodes_are_blocked() {
        let policy = policy(StepAction::Http("http://b/".to_owned()));
        let mut tracker = HealthTracker::new(Duration::ZERO, Timestamp::UNIX_EPOCH);
        let vanished = Observation::Failed(Reason::Vanished, String::new());
        tracker.observe(&vanished, Timestamp::UNIX_EPOCH);
        let plan = plan_of(&policy, Device { health: tracker.health().clone(), ..board() });
        assert_eq!(plan.blocked_reason.as_deref(), Some("it is no longer on this node"));
        let inventory = Inventory { devices: vec![board()], ..Inventory::default() };
        let foreign_plans = plans(&policy, &inventory, &|_| Some("another node's".to_owned()));
        let blocked_reason =
            foreign_plans.into_values().next().and_then(|plan| plan.blocked_reason);
        assert_eq!(blocked_reason.as_deref(), Some("another node's"));
    }

    #[test]
    fn steps_write_where_the_devices_files_are() {
        let write = StepAction::Write { file: "reset".into(), text: "1".to_owned() };
        let folder = Some("/sys/devices/virtual/misc/b".into());
        let with_folder = Device { folder: folder.clone(), ..board() };
        assert_eq!(plan_of(&policy(write.clone()), with_folder).folder, folder);
        assert_eq!(
            plan_of(&policy(write), board()).folder,
            None,
            "a board on the network has none"
        );
    }
}
