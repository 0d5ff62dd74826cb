//! Changes to machine profiles whose devices the agent would not offer by default.

use windlass_config::{Policy, ResourceRule, Resources, Selector, Sharing};
use windlass_core::device::DeviceKind;
use windlass_machine::{MachineProfile, mig::GpuInstanceProfile};

/// Resource for NICs of a machine without other devices.
const NICS: &str = "example.com/nic";

/// Offers the NICs of a machine without other devices, and adds that to its description.
pub(super) fn offer_nics(profile: &mut MachineProfile, policy: &mut Policy) {
    let other_devices =
        profile.gpus.len() + profile.devices.len() + usize::from(profile.amd.is_some());
    if other_devices == 0 && !profile.nics.is_empty() {
        let rule = ResourceRule::new(
            NICS.parse().expect("a resource's name"),
            Selector::all(DeviceKind::Nic),
            Sharing::Exclusive,
        );
        policy.resources = Resources::Rules(vec![rule]);
        profile.description = format!("{}; offered here as {NICS}", profile.description);
    }
}

/// Creates two of the smallest MIG instances on each GPU, if every GPU has MIG enabled and no instance. Adds that to
/// the description.
pub(super) fn create_mig_instances(profile: &mut MachineProfile) {
    let has_no_instances =
        |instances: &Option<Vec<String>>| instances.as_ref().is_some_and(Vec::is_empty);
    if profile.gpus.is_empty() || !profile.gpus.iter().all(|gpu| has_no_instances(&gpu.mig)) {
        return;
    }
    let smallest_profile = |gpu| {
        let capability = profile.card_of(gpu)?.mig?;
        Some(GpuInstanceProfile::all_of(capability).first()?.name(capability))
    };
    let names: Vec<_> = profile.gpus.iter().map(smallest_profile).collect();
    for (gpu, name) in profile.gpus.iter_mut().zip(names) {
        gpu.mig = name.map(|name| vec![name; 2]);
    }
    profile.description.push_str("; the demo creates two instances on each");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Profile and policy of the demo on a built-in machine.
    fn demo_setup(name: &str) -> (MachineProfile, Policy) {
        let (mut profile, mut policy) =
            (MachineProfile::named(name).expect("a shipped profile"), Policy::default());
        create_mig_instances(&mut profile);
        offer_nics(&mut profile, &mut policy);
        profile.validate().expect("the changed profile is valid");
        (profile, policy)
    }

    #[test]
    fn mig_gpus_without_instances_get_two() {
        let (profile, policy) = demo_setup("mig-pcie");
        let mig: Vec<_> =
            profile.gpus.iter().map(|gpu| gpu.mig.clone().expect("MIG is on")).collect();
        assert_eq!(mig[0], ["1g.10gb", "1g.10gb"]);
        assert_eq!(mig[3], ["1g.6gb", "1g.6gb"]);
        assert_eq!(policy, Policy::default());
        assert!(profile.description.contains("two instances"), "{}", profile.description);
    }

    #[test]
    fn nics_are_offered_if_the_machine_has_no_other_devices() {
        let (_, policy) = demo_setup("rdma");
        let Resources::Rules(rules) = policy.resources else { panic!("no rules") };
        assert_eq!(rules[0].name.as_str(), NICS);
    }

    #[test]
    fn other_machines_are_unchanged() {
        for name in MachineProfile::names().filter(|name| !["rdma", "mig-pcie"].contains(name)) {
            let (profile, policy) = demo_setup(name);
            assert_eq!(profile, MachineProfile::named(name).expect("a shipped profile"), "{name}");
            assert_eq!(policy, Policy::default(), "{name}");
        }
    }
}
