//! Changes to a machine profile without devices that the agent would offer.

use windlass_config::{Policy, ResourceRule, Resources, Selector, Sharing};
use windlass_core::device::DeviceKind;
use windlass_machine::{MachineProfile, mig::Shape};

/// Resource for NICs of a machine without other devices.
const NICS: &str = "example.com/nic";

/// Offers the NICs of a machine without other devices, and adds that to its description.
pub(super) fn offer_nics(profile: &mut MachineProfile, policy: &mut Policy) {
    let others = profile.gpus.len() + profile.devices.len() + usize::from(profile.amd.is_some());
    if others == 0 && !profile.nics.is_empty() {
        let rule = ResourceRule::new(
            NICS.parse().expect("a resource's name"),
            Selector::all(DeviceKind::Nic),
            Sharing::Exclusive,
        );
        policy.resources = Resources::Rules(vec![rule]);
        profile.description = format!("{}; offered here as {NICS}", profile.description);
    }
}

/// Creates two of the smallest MIG instances on each GPU, if MIG is on without instances, and adds that to the
/// description.
pub(super) fn cut(profile: &mut MachineProfile) {
    let is_uncut = |instances: &Option<Vec<String>>| instances.as_ref().is_some_and(Vec::is_empty);
    if profile.gpus.is_empty() || !profile.gpus.iter().all(|gpu| is_uncut(&gpu.mig)) {
        return;
    }
    let smallest = |gpu| {
        let capability = profile.card_of(gpu)?.mig?;
        Some(Shape::of(capability).first()?.name(capability))
    };
    let names: Vec<_> = profile.gpus.iter().map(smallest).collect();
    for (gpu, name) in profile.gpus.iter_mut().zip(names) {
        gpu.mig = name.map(|name| vec![name; 2]);
    }
    profile.description.push_str("; here two instances are on each");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Profile and policy of the demo on a built-in machine.
    fn made(name: &str) -> (MachineProfile, Policy) {
        let (mut profile, mut policy) =
            (MachineProfile::named(name).expect("a shipped profile"), Policy::default());
        cut(&mut profile);
        offer_nics(&mut profile, &mut policy);
        profile.validate().expect("as good as before");
        (profile, policy)
    }

    #[test]
    fn gpus_that_are_to_be_cut_are() {
        let (profile, policy) = made("mig-pcie");
        let cut: Vec<_> = profile.gpus.iter().map(|gpu| gpu.mig.clone().expect("on")).collect();
        assert_eq!(cut[0], ["1g.10gb", "1g.10gb"]);
        assert_eq!(cut[3], ["1g.6gb", "1g.6gb"]);
        assert_eq!(policy, Policy::default());
        assert!(profile.description.contains("two instances"), "{}", profile.description);
    }

    #[test]
    fn interfaces_of_a_machine_without_anything_else_are_offered() {
        let (_, policy) = made("rdma");
        let Resources::Rules(rules) = policy.resources else { panic!("no rules") };
        assert_eq!(rules[0].name.as_str(), NICS);
    }

    #[test]
    fn a_machine_that_offers_something_stays_as_it_is() {
        for name in MachineProfile::names().filter(|name| !["rdma", "mig-pcie"].contains(name)) {
            let (profile, policy) = made(name);
            assert_eq!(profile, MachineProfile::named(name).expect("shipped"), "{name}");
            assert_eq!(policy, Policy::default(), "{name}");
        }
    }
}
