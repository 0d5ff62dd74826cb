//! Validation of AMD GPUs and other devices.

use std::{
    collections::BTreeSet,
    path::{Component, Path},
};

use super::{
    MAX_CARD_MIB, MachineProfile, ProfileEntry, ValidationError, ValidationErrorKind, check_range,
};

/// Checks partition modes and xGMI peers of AMD GPUs.
pub(super) fn check_amd(profile: &MachineProfile) -> Result<(), ValidationError> {
    let Some(amd) = &profile.amd else { return Ok(()) };
    let machine_problem = |kind| ValidationError { entry: ProfileEntry::Machine, kind };
    check_range("number of amd dies", amd.card.dies.into(), 1, 8).map_err(machine_problem)?;
    check_range("amd memory_mib", amd.card.memory_mib, 1024, MAX_CARD_MIB)
        .map_err(machine_problem)?;
    check_range("amd compute_units", amd.card.compute_units.into(), 1, 10_000)
        .map_err(machine_problem)?;
    for (index, gpu) in amd.gpus.iter().enumerate() {
        let problem = |kind| ValidationError { entry: ProfileEntry::Amd(index), kind };
        let (partition_count, dies) = (gpu.compute.partition_count(amd.card.dies), amd.card.dies);
        check_range("number of parts", partition_count.into(), 1, dies.into()).map_err(problem)?;
        let is_invalid = |peer: &&usize| **peer == index || **peer >= amd.gpus.len();
        if let Some(peer) = gpu.peers.iter().flatten().find(is_invalid) {
            return Err(problem(ValidationErrorKind::UnlinkedPeer(*peer)));
        }
    }
    Ok(())
}

/// Checks that device names are unique and that files stay in their folders.
pub(super) fn check_devices(profile: &MachineProfile) -> Result<(), ValidationError> {
    let mut used_names = BTreeSet::new();
    for (index, device) in profile.devices.iter().enumerate() {
        let problem = |kind| ValidationError { entry: ProfileEntry::Device(index), kind };
        if device.name.is_empty() || !used_names.insert(&device.name) {
            return Err(problem(ValidationErrorKind::InvalidDeviceName(device.name.clone())));
        }
        let is_inside =
            |path: &&Path| path.components().all(|part| matches!(part, Component::Normal(_)));
        if let Some(path) = device.paths().find(|path| !is_inside(path)) {
            return Err(problem(ValidationErrorKind::PathOutsideDevice(path.to_owned())));
        }
    }
    Ok(())
}
