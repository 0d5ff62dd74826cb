//! Validation of adapters, their functions, and bonds.

use std::collections::BTreeSet;

use super::{Entry, MachineProfile, ValidationError, ValidationErrorKind, range};
use crate::profile::Nic;

/// Checks that adapters have unique interfaces and RDMA devices, and that members of bonds exist.
pub(super) fn adapters(profile: &MachineProfile) -> Result<(), ValidationError> {
    let mut taken = BTreeSet::new();
    for (index, nic) in profile.nics.iter().enumerate() {
        let problem = |kind| ValidationError { entry: Entry::Nic(index), kind };
        range("rate_gbps", nic.rate_gbps.into(), 1, 100_000).map_err(problem)?;
        for (what, name) in names(nic) {
            if !taken.insert((what, name)) {
                return Err(problem(ValidationErrorKind::DuplicateNicIdentifier(
                    what,
                    name.clone(),
                )));
            }
        }
        if let Some(sriov) = &nic.sriov {
            let (there, total) = (sriov.functions.len() as u64, u64::from(sriov.total));
            range("number of virtual functions", there, 0, total).map_err(problem)?;
            range("offset", sriov.offset.into(), 1, 256).map_err(problem)?;
        }
    }
    for (index, bond) in profile.bonds.iter().enumerate() {
        let missing = |name: &&String| !taken.contains(&("netdev", *name));
        if let Some(name) = bond.interfaces.iter().find(missing) {
            let kind = ValidationErrorKind::UnknownInterface(name.clone());
            return Err(ValidationError { entry: Entry::Bond(index), kind });
        }
    }
    Ok(())
}

/// Every interface and RDMA device of an adapter.
fn names(nic: &Nic) -> impl Iterator<Item = (&'static str, &String)> {
    let own = [(Some(&nic.netdev), nic.rdma.as_ref())];
    let functions = nic.sriov.iter().flat_map(|sriov| &sriov.functions);
    let functions = functions.map(|part| (part.netdev.as_ref(), part.rdma.as_ref()));
    let parts = nic.subfunctions.iter().map(|part| (Some(&part.netdev), part.rdma.as_ref()));
    own.into_iter().chain(functions).chain(parts).flat_map(|(netdev, rdma)| {
        let (netdev, rdma) = (netdev.map(|name| ("netdev", name)), rdma.map(|name| ("rdma", name)));
        netdev.into_iter().chain(rdma)
    })
}
