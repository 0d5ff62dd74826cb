//! What a machine gets for a demo that the agent offers nothing of as it is.

use windlass_config::{Policy, ResourceRule, Resources, Selector, Sharing};
use windlass_core::device::DeviceKind;
use windlass_machine::{Profile, mig::Shape};

/// What the network interfaces of a machine without anything else are offered as.
const NICS: &str = "example.com/nic";

/// Offers the interfaces of a machine that has nothing else, and says so in its description.
pub(super) fn offer_nics(profile: &mut Profile, policy: &mut Policy) {
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

/// Makes two of the smallest instances on each GPU of a machine of which MIG is on and nothing is cut, and says so in
/// its description.
pub(super) fn cut(profile: &mut Profile) {
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

    /// What the demo of a shipped machine is about.
    fn made(name: &str) -> (Profile, Policy) {
        let (mut profile, mut policy) =
            (Profile::named(name).expect("a shipped profile"), Policy::default());
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
        for name in Profile::names().filter(|name| !["rdma", "mig-pcie"].contains(name)) {
            let (profile, policy) = made(name);
            assert_eq!(profile, Profile::named(name).expect("shipped"), "{name}");
            assert_eq!(policy, Policy::default(), "{name}");
        }
    }
}
