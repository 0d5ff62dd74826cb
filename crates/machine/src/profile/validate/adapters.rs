//! Validation of adapters, their functions, and bonds.

use std::collections::BTreeSet;

use super::{MachineProfile, ProfileEntry, ValidationError, ValidationErrorKind, check_range};
use crate::profile::Nic;

/// Checks that adapters have unique interfaces and RDMA devices, and that members of bonds exist.
pub(super) fn check_adapters(profile: &MachineProfile) -> Result<(), ValidationError> {
    let mut used_names = BTreeSet::new();
    for (index, nic) in profile.nics.iter().enumerate() {
        let problem = |kind| ValidationError { entry: ProfileEntry::Nic(index), kind };
        check_range("rate_gbps", nic.rate_gbps.into(), 1, 100_000).map_err(problem)?;
        for (label, name) in names(nic) {
            if !used_names.insert((label, name)) {
                return Err(problem(ValidationErrorKind::DuplicateNicIdentifier(
                    label,
                    name.clone(),
                )));
            }
        }
        if let Some(sriov) = &nic.sriov {
            let (count, total) = (sriov.functions.len() as u64, u64::from(sriov.total));
            check_range("number of virtual functions", count, 0, total).map_err(problem)?;
            check_range("offset", sriov.offset.into(), 1, 256).map_err(problem)?;
        }
    }
    for (index, bond) in profile.bonds.iter().enumerate() {
        let is_unknown = |name: &&String| !used_names.contains(&("netdev", *name));
        if let Some(name) = bond.interfaces.iter().find(is_unknown) {
            let kind = ValidationErrorKind::UnknownInterface(name.clone());
            return Err(ValidationError { entry: ProfileEntry::Bond(index), kind });
        }
    }
    Ok(())
}

/// Every interface and RDMA device of an adapter.
fn names(nic: &Nic) -> impl Iterator<Item = (&'static str, &String)> {
    let adapter = [(Some(&nic.netdev), nic.rdma.as_ref())];
    let functions = nic.sriov.iter().flat_map(|sriov| &sriov.functions);
    let functions = functions.map(|function| (function.netdev.as_ref(), function.rdma.as_ref()));
    let subfunctions = nic.subfunctions.iter();
    let subfunctions =
        subfunctions.map(|function| (Some(&function.netdev), function.rdma.as_ref()));
    adapter.into_iter().chain(functions).chain(subfunctions).flat_map(|(netdev, rdma)| {
        let (netdev, rdma) = (netdev.map(|name| ("netdev", name)), rdma.map(|name| ("rdma", name)));
        netdev.into_iter().chain(rdma)
    })
}
