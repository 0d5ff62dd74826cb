//! GPUs on which instances are made for claims.

use std::{collections::BTreeSet, fmt::Write as _};

use windlass_core::device::{Partition, PossiblePartition};
use windlass_machine::{Profile, mig::Shape};

use super::*;
use crate::{
    config::{DraOffer, DraPartitions, DraPolicy, Policy},
    ledger::{ClaimRef, Use},
};

/// A GPU in MIG mode with all that a card of this machine can be cut to.
pub(in crate::dra) fn uncut(machine: &str, index: u32) -> Device {
    let profile = Profile::named(machine).expect("a shipped profile");
    let card = profile.cards.values().next().expect("it has GPUs").clone();
    let capability = card.mig.expect("it can be cut");
    let id: DeviceId =
        format!("GPU-{index:08x}-0000-4000-8000-000000000000").parse().expect("an id");
    let name = |name| AttributeName::new("nvidia.com", name);
    let possible = |shape: &Shape| {
        let units = shape.units(&card, capability);
        let capacity = [
            (name("memory"), Quantity::Bytes(shape.memory_mib(&card) << 20)),
            (name("multiprocessors"), Quantity::Count(units.multiprocessors.into())),
            (name("copyEngines"), Quantity::Count(units.copy_engines.into())),
            (name("decoders"), Quantity::Count(units.decoders.into())),
            (name("encoders"), Quantity::Count(0)),
            (name("jpegEngines"), Quantity::Count(units.jpeg.into())),
            (name("ofaEngines"), Quantity::Count(units.optical_flow.into())),
        ];
        let (shape, gpu, profile) = (*shape, id.clone(), shape.name(capability));
        shape.starts.iter().map(move |start| PossiblePartition {
            partition: Partition {
                gpu: gpu.clone(),
                profile: profile.as_str().into(),
                profile_id: shape.profile_id,
                start: *start,
                size: shape.memory_slices,
            },
            capacity: capacity.clone().into(),
        })
    };
    let partitions: Vec<_> = Shape::of(capability).iter().flat_map(possible).collect();
    Device { partitioned: true, partitions: partitions.into(), ..gpu(id.as_str(), index) }
}

/// A node on whose GPUs instances are made for claims.
pub(in crate::dra) fn on_demand(devices: Vec<Device>) -> NodeState {
    let dra = DraPolicy {
        offer: DraOffer::Beside,
        partitions: DraPartitions::OnDemand,
        ..DraPolicy::default()
    };
    let policy = Arc::new(Policy { dra, ..Policy::default() });
    NodeState { claimable: Claimable::new(), policy, ..state(devices) }
}

fn pool(state: &NodeState, ledger: &LedgerDesk) -> Pool {
    let ledger = ledger.watch().borrow().clone();
    let catalog = Catalog::of(state, "n1", &DriverName::default(), &ledger);
    catalog.pools["n1/nvidia"].clone()
}

/// A line for the set, then one for each entry.
fn lines(pool: &Pool) -> String {
    let line = |name: &str, counters: &Counters| {
        let amounts = counters.amounts.iter();
        let amounts = amounts.filter(|(name, _)| !name.starts_with("memory-slice"));
        let amounts: Vec<_> = amounts.map(|(name, amount)| format!("{name}={amount}")).collect();
        let slices = counters.amounts.keys().filter_map(|it| it.strip_prefix("memory-slice-"));
        let slices: String = slices.collect();
        format!("{name}: slices {slices} {}\n", amounts.join(" "))
    };
    let mut text = String::new();
    for set in &pool.counters {
        text += &line(&set.set, set);
    }
    for entry in &pool.entries {
        let name = entry.name.as_str().split_once("-mig-").expect("a partition").1;
        let _ = write!(text, "{}", line(name, entry.consumes.as_ref().expect("it takes")));
    }
    text
}

#[test]
fn a_gpu_in_mig_mode_has_each_profile_at_each_place() {
    for machine in ["mig-a100", "dgx-h100"] {
        let state = on_demand(vec![uncut(machine, 0)]);
        insta::assert_snapshot!(machine, lines(&pool(&state, &LedgerDesk::default())));
    }
}

/// Every way to place partitions beside each other until no more fits, as the driver lets them stand: apart,
/// and one with media engines.
fn layouts(all: &[PossiblePartition], from: u32) -> Vec<Vec<&PossiblePartition>> {
    let mut found = vec![Vec::new()];
    for it in all.iter().filter(|it| it.partition.start >= from) {
        for mut rest in layouts(all, it.partition.slices().end) {
            rest.push(it);
            found.push(rest);
        }
    }
    let has_media = |it: &&&PossiblePartition| it.partition.profile.as_str().contains('+');
    found.retain(|layout| layout.iter().filter(has_media).count() <= 1);
    found
}

#[test]
fn whatever_the_driver_lets_stand_side_by_side_the_counters_have_room_for() {
    for machine in ["mig-a100", "dgx-h100", "hgx-h200", "hgx-b200"] {
        let gpu = uncut(machine, 0);
        let state = on_demand(vec![gpu.clone()]);
        let pool = pool(&state, &LedgerDesk::default());
        let room = &pool.counters[0].amounts;
        let (mut seen, mut layouts) = (0, layouts(&gpu.partitions, 0));
        layouts.retain(|layout| layout.len() > 1);
        for layout in layouts {
            let names: BTreeSet<_> =
                layout.iter().map(|it| EntryName::of_partition(&it.partition)).collect();
            let taken = pool.entries.iter().filter(|entry| names.contains(&entry.name));
            let mut left = room.clone();
            for (name, amount) in
                taken.filter_map(|it| it.consumes.as_ref()).flat_map(|it| &it.amounts)
            {
                let (Quantity::Bytes(taken) | Quantity::Count(taken)) = *amount;
                let (Quantity::Bytes(left) | Quantity::Count(left)) =
                    left.get_mut(name).expect("counted");
                *left = left.checked_sub(taken).unwrap_or_else(|| panic!("{name}: {names:?}"));
            }
            seen += 1;
        }
        assert!(seen > 100, "{machine}: {seen}");
    }
}

fn place<'a>(gpu: &'a Device, profile: &str, start: u32) -> &'a Partition {
    let is_it = |it: &&Partition| it.profile.as_str() == profile && it.start == start;
    gpu.partitions.iter().map(|it| &it.partition).find(is_it).expect("there is such")
}

/// The places with a taint, as `3g.40gb@4 key=value`.
fn tainted(pool: &Pool) -> Vec<String> {
    let tainted = pool.entries.iter().filter(|entry| !entry.taints.is_empty());
    let text = |entry: &Entry| {
        let place = entry.partition.as_ref().expect("a partition");
        let taints = entry.taints.iter().map(|Taint { key, value }| format!(" {key}={value}"));
        format!("{}@{}{}", place.profile, place.start, taints.collect::<String>())
    };
    tainted.map(text).collect()
}

#[test]
fn an_instance_that_no_claim_accounts_for_shuts_out_what_cannot_stand_beside_it() {
    let gpu = uncut("mig-a100", 0);
    let at = place(&gpu, "2g.10gb", 4).clone();
    let id: DeviceId = "MIG-0a".parse().expect("an id");
    let mut instance = super::gpu(id.as_str(), 0);
    (instance.parent, instance.partition) = (Some(gpu.id.clone()), Some(at.clone()));
    let (state, ledger) = (on_demand(vec![gpu, instance]), LedgerDesk::default());
    let shut_out = |taint: &str| {
        let places =
            ["1g.5gb@5", "1g.5gb@4", "1g.5gb+me@5", "1g.5gb+me@4", "1g.10gb@4", "2g.10gb@4"];
        let places = places.iter().chain(&["3g.20gb@4", "7g.40gb@0"]);
        places.map(|place| format!("{place} {taint}")).collect::<Vec<_>>()
    };
    assert_eq!(tainted(&pool(&state, &ledger)), shut_out("mig-instance=2g.10gb"));

    let resource = "nvidia.com/mig-2g.10gb".parse().expect("a name");
    ledger.take_for_container(&resource, &[state.kin.footprint(&id)]).expect("free");
    assert_eq!(tainted(&pool(&state, &ledger)), shut_out("device-plugin=mig-2g.10gb"));
    ledger.recorded(&Recorded::default(), (Instant::now(), Duration::ZERO));

    // Made for a claim, it is what the scheduler counts.
    let claim = |uid: &str| {
        let [namespace, name, uid] = ["ns", "c", uid].map(ToOwned::to_owned);
        ClaimRef { namespace, name, uid }
    };
    let take = |uid, place: &Partition| {
        ledger.take_for_claim(&claim(uid), &[(state.kin.footprint(&place.id()), Use::Alone)])
    };
    take("u", &at).expect("free");
    assert!(tainted(&pool(&state, &ledger)).is_empty());
    let gpu = &state.inventory.devices[0];
    take("v", place(gpu, "3g.20gb", 4)).expect_err("the same slices");
    take("v", place(gpu, "3g.20gb", 0)).expect("beside it");
    let container = ledger.take_for_container(&resource, &[state.kin.footprint(&id)]);
    container.expect_err("the claim's");
}

#[test]
fn a_gpu_is_cut_for_claims_only_in_mig_mode_and_when_it_is_not_kept_back() {
    let whole = Device { partitioned: false, ..uncut("mig-a100", 0) };
    let catalog =
        Catalog::of(&on_demand(vec![whole]), "n1", &DriverName::default(), &Ledger::default());
    assert!(catalog.pools.is_empty(), "what is whole is claimed whole");
    let mut as_cut = on_demand(vec![uncut("mig-a100", 0)]);
    as_cut.policy = Arc::default();
    let catalog = Catalog::of(&as_cut, "n1", &DriverName::default(), &Ledger::default());
    assert!(catalog.pools.is_empty());
}
