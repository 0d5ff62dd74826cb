//! Catalog of GPUs that are partitioned for claims.

use std::{collections::BTreeSet, fmt::Write as _};

use windlass_allocations::ledger::{ClaimRef, ClaimUse};
use windlass_config::{DraMigMode, DraOffer, DraPartitions, DraPolicy, Policy, ShareRule};
use windlass_core::device::{Partition, PossiblePartition};
use windlass_machine::{MachineProfile, mig::GpuInstanceProfile};

use super::*;

/// A GPU in MIG mode without instances, with all placements of its model.
pub(crate) fn gpu_in_mig_mode(machine: &str, index: u32) -> Device {
    let profile = MachineProfile::named(machine).expect("a shipped profile");
    let card = profile.cards.values().next().expect("a profile with GPUs").clone();
    let capability = card.mig.expect("a model with MIG");
    let id: DeviceId =
        format!("GPU-{index:08x}-0000-4000-8000-000000000000").parse().expect("an id");
    let name = |name| AttributeName::new("nvidia.com", name);
    let possible = |shape: &GpuInstanceProfile| {
        let units = shape.resources(&card, capability);
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
        shape.possible_starts.iter().map(move |start| PossiblePartition {
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
    let partitions: Vec<_> =
        GpuInstanceProfile::all_of(capability).iter().flat_map(possible).collect();
    let mut gpu = gpu(id.as_str(), index);
    let generation = AttributeValue::version(&String::from(card.compute_capability));
    gpu.attributes.insert(name("cudaComputeCapability"), generation);
    gpu.attributes.insert(name("migEnabled"), AttributeValue::Bool(true));
    Device { partitioned: true, partitions: partitions.into(), ..gpu }
}

/// A node whose driver creates MIG instances for claims.
pub(crate) fn node_with_partitions(devices: Vec<Device>) -> NodeState {
    let dra = DraPolicy {
        offer: DraOffer::Beside,
        partitions: DraPartitions::OnDemand,
        ..DraPolicy::default()
    };
    let policy = Arc::new(Policy { dra, ..Policy::default() });
    NodeState { claimable: ClaimableDevices::new(), policy, ..state(devices) }
}

/// Node as of [`node_with_partitions`], whose driver also switches MIG mode for claims. Claims share full GPUs by
/// amounts under the rules of `shares`.
pub(crate) fn node_switching_mig_mode(devices: Vec<Device>, shares: Vec<ShareRule>) -> NodeState {
    let mut state = node_with_partitions(devices);
    let mut policy = Policy::clone(&state.policy);
    policy.dra.mig_mode = DraMigMode::OnDemand;
    policy.dra.shares = shares;
    state.policy = Arc::new(policy);
    state
}

fn pool(state: &NodeState, ledger: &SharedLedger) -> Pool {
    let ledger = ledger.watch().borrow().clone();
    let catalog = Catalog::of(state, "n1", &DriverName::default(), &ledger);
    catalog.pools["n1/nvidia"].clone()
}

/// One line for each counter set, then one for each entry.
fn summary(pool: &Pool) -> String {
    let line = |name: &str, counters: &Counters| {
        let amounts = counters.amounts.iter();
        let amounts = amounts.filter(|(name, _)| !name.starts_with("memory-slice"));
        let amounts: Vec<_> = amounts.map(|(name, amount)| format!("{name}={amount}")).collect();
        let slices = counters.amounts.keys().filter_map(|name| name.strip_prefix("memory-slice-"));
        let slices: String = slices.collect();
        format!("{name}: slices {slices} {}\n", amounts.join(" "))
    };
    let mut text = String::new();
    for set in &pool.counters {
        text += &line(&set.set, set);
    }
    for entry in &pool.entries {
        let name = entry.name.as_str().split_once("-mig-").expect("a partition").1;
        let _ = write!(
            text,
            "{}",
            line(name, entry.consumes.as_ref().expect("a partition consumes counters"))
        );
    }
    text
}

#[test]
fn a_gpu_in_mig_mode_has_each_profile_at_each_place() {
    for machine in ["mig-a100", "dgx-h100"] {
        let state = node_with_partitions(vec![gpu_in_mig_mode(machine, 0)]);
        insta::assert_snapshot!(machine, summary(&pool(&state, &SharedLedger::default())));
    }
}

/// Every set of partitions that NVIDIA's driver allows on one GPU: without overlap, and at most one with media engines.
fn layouts(partitions: &[PossiblePartition], start: u32) -> Vec<Vec<&PossiblePartition>> {
    let mut layouts_from_start = vec![Vec::new()];
    for possible in partitions.iter().filter(|possible| possible.partition.start >= start) {
        for mut layout in layouts(partitions, possible.partition.slices().end) {
            layout.push(possible);
            layouts_from_start.push(layout);
        }
    }
    let has_media =
        |possible: &&&PossiblePartition| possible.partition.profile.as_str().contains('+');
    layouts_from_start.retain(|layout| layout.iter().filter(has_media).count() <= 1);
    layouts_from_start
}

#[test]
fn counters_have_room_for_every_layout_that_the_driver_allows() {
    for machine in ["mig-a100", "dgx-h100", "hgx-h200", "hgx-b200"] {
        let gpu = gpu_in_mig_mode(machine, 0);
        let state = node_with_partitions(vec![gpu.clone()]);
        let pool = pool(&state, &SharedLedger::default());
        let available = &pool.counters[0].amounts;
        let (mut layout_count, mut layouts) = (0, layouts(&gpu.partitions, 0));
        layouts.retain(|layout| layout.len() > 1);
        for layout in layouts {
            let names: BTreeSet<_> = layout
                .iter()
                .map(|possible| DeviceName::of_partition(&possible.partition))
                .collect();
            let consumers = pool.entries.iter().filter(|entry| names.contains(&entry.name));
            let mut remaining = available.clone();
            for (name, amount) in consumers
                .filter_map(|entry| entry.consumes.as_ref())
                .flat_map(|counters| &counters.amounts)
            {
                let (Quantity::Bytes(amount) | Quantity::Count(amount)) = *amount;
                let (Quantity::Bytes(remaining) | Quantity::Count(remaining)) =
                    remaining.get_mut(name).expect("a counter of the set");
                *remaining =
                    remaining.checked_sub(amount).unwrap_or_else(|| panic!("{name}: {names:?}"));
            }
            layout_count += 1;
        }
        assert!(layout_count > 100, "{machine}: {layout_count}");
    }
}

fn place<'a>(gpu: &'a Device, profile: &str, start: u32) -> &'a Partition {
    let is_placement =
        |partition: &&Partition| partition.profile.as_str() == profile && partition.start == start;
    gpu.partitions
        .iter()
        .map(|possible| &possible.partition)
        .find(is_placement)
        .expect("a possible placement")
}

/// Placements with a taint, as `3g.40gb@4 key=value`.
fn tainted(pool: &Pool) -> Vec<String> {
    let tainted = pool.entries.iter().filter(|entry| !entry.taints.is_empty());
    let text = |entry: &CatalogEntry| {
        let placement = entry.partition.as_ref();
        let placement = placement.map_or("whole".to_owned(), |partition| {
            format!("{}@{}", partition.profile, partition.start)
        });
        let taints = entry.taints.iter().map(|Taint { key, value }| format!(" {key}={value}"));
        placement + &taints.collect::<String>()
    };
    tainted.map(text).collect()
}

#[test]
fn an_instance_without_a_claim_taints_every_placement_that_conflicts_with_it() {
    let gpu = gpu_in_mig_mode("mig-a100", 0);
    let placement = place(&gpu, "2g.10gb", 4).clone();
    let id: DeviceId = "MIG-0a".parse().expect("an id");
    let mut instance = super::gpu(id.as_str(), 0);
    (instance.parent, instance.partition) = (Some(gpu.id.clone()), Some(placement.clone()));
    let (state, ledger) = (node_with_partitions(vec![gpu, instance]), SharedLedger::default());
    let conflicting = |taint: &str| {
        let places =
            ["1g.5gb@5", "1g.5gb@4", "1g.5gb+me@5", "1g.5gb+me@4", "1g.10gb@4", "2g.10gb@4"];
        let places = places.iter().chain(&["3g.20gb@4", "7g.40gb@0"]);
        places.map(|place| format!("{place} {taint}")).collect::<Vec<_>>()
    };
    assert_eq!(tainted(&pool(&state, &ledger)), conflicting("mig-instance=2g.10gb"));

    let resource = "nvidia.com/mig-2g.10gb".parse().expect("a name");
    ledger.take_for_container(&resource, &[state.overlaps.overlap(&id)]).expect("free");
    assert_eq!(tainted(&pool(&state, &ledger)), conflicting("device-plugin=mig-2g.10gb"));
    ledger.apply_checkpoint(
        &RecordedDevices::default(),
        Instant::now() + CHECKPOINT_GRACE,
        Duration::ZERO,
    );

    // The scheduler counts an instance of a claim, so it causes no taint.
    let claim = |uid: &str| {
        let [namespace, name, uid] = ["ns", "c", uid].map(ToOwned::to_owned);
        ClaimRef { namespace, name, uid }
    };
    let take = |uid, placement: &Partition| {
        ledger.take_for_claim(
            &claim(uid),
            &[(state.overlaps.overlap(&placement.id()), ClaimUse::Exclusive)],
        )
    };
    take("u", &placement).expect("free");
    assert!(tainted(&pool(&state, &ledger)).is_empty());
    let gpu = &state.inventory.devices[0];
    take("v", place(gpu, "3g.20gb", 4)).expect_err("the same slices");
    take("v", place(gpu, "3g.20gb", 0)).expect("beside it");
    let container = ledger.take_for_container(&resource, &[state.overlaps.overlap(&id)]);
    container.expect_err("the claim's");
}

#[test]
fn a_gpu_is_partitioned_for_claims_only_in_mig_mode_and_if_the_policy_offers_it() {
    let whole = Device { partitioned: false, ..gpu_in_mig_mode("mig-a100", 0) };
    let catalog = Catalog::of(
        &node_with_partitions(vec![whole]),
        "n1",
        &DriverName::default(),
        &Ledger::default(),
    );
    assert!(catalog.pools.is_empty(), "a GPU without MIG mode has no placements");
    let mut without_claims = node_with_partitions(vec![gpu_in_mig_mode("mig-a100", 0)]);
    without_claims.policy = Arc::default();
    let catalog = Catalog::of(&without_claims, "n1", &DriverName::default(), &Ledger::default());
    assert!(catalog.pools.is_empty());
}

#[test]
fn a_gpu_whose_mig_mode_is_switched_has_a_full_entry_with_all_counters() {
    let mig_off_gpu = |index| Device { partitioned: false, ..gpu_in_mig_mode("dgx-h100", index) };
    let ampere = gpu_in_mig_mode("mig-a100", 2);
    let state = node_switching_mig_mode(
        vec![mig_off_gpu(0), gpu_in_mig_mode("dgx-h100", 1), ampere],
        Vec::new(),
    );
    let pool = pool(&state, &SharedLedger::default());
    // GPUs without a full entry come first, and full entries last, in descending order.
    let gpus = |name: &str| name["gpu-".len()..][..8].trim_start_matches('0').to_owned();
    let mut order: Vec<_> = pool
        .entries
        .iter()
        .map(|entry| (gpus(entry.name.as_str()), entry.partition.is_some()))
        .collect();
    order.dedup();
    let order: Vec<_> = order.iter().map(|(gpu, is_part)| (gpu.as_str(), *is_part)).collect();
    assert_eq!(order, [("2", true), ("", true), ("1", true), ("1", false), ("", false)]);
    let mode = AttributeName::new("gpu.nvidia.com", "migEnabled");
    for full_entry in pool.entries.iter().filter(|entry| entry.partition.is_none()) {
        assert!(
            pool.counters
                .contains(full_entry.consumes.as_ref().expect("a full entry consumes counters"))
        );
        assert_eq!(
            full_entry.attributes[&mode],
            AttributeValue::Bool(false),
            "MIG mode is off once a claim has it"
        );
    }
}

#[test]
fn all_entries_of_a_gpu_are_tainted_if_a_container_holds_it_or_it_is_unclean() {
    let gpu = gpu_in_mig_mode("dgx-h100", 0);
    let (id, places) = (gpu.id.clone(), gpu.partitions.len());
    let (mut state, ledger) =
        (node_switching_mig_mode(vec![gpu], Vec::new()), SharedLedger::default());
    let resource = "nvidia.com/gpu".parse().expect("a name");
    ledger.take_for_container(&resource, &[state.overlaps.overlap(&id)]).expect("free");
    let assert_all_tainted = |state: &NodeState, taint: &str| {
        let tainted = tainted(&pool(state, &ledger));
        assert_eq!(tainted.len(), places + 1);
        assert!(tainted.iter().all(|taint_text| taint_text.ends_with(taint)), "{tainted:?}");
    };
    assert_all_tainted(&state, " device-plugin=gpu");
    ledger.apply_checkpoint(
        &RecordedDevices::default(),
        Instant::now() + CHECKPOINT_GRACE,
        Duration::ZERO,
    );
    assert!(tainted(&pool(&state, &ledger)).is_empty());
    state.pending_cleanups.insert(id, "dirty");
    assert_all_tainted(&state, " unclean=dirty");
}

#[test]
fn the_full_entry_is_tainted_by_an_instance_without_a_claim_and_not_by_a_claim() {
    let gpu = gpu_in_mig_mode("dgx-h100", 0);
    let placement = place(&gpu, "1g.10gb", 6).clone();
    let mut instance = super::gpu("MIG-0a", 0);
    (instance.parent, instance.partition) = (Some(gpu.id.clone()), Some(placement.clone()));
    let (state, ledger) =
        (node_switching_mig_mode(vec![gpu, instance], Vec::new()), SharedLedger::default());
    let full_entry_taint = |ledger: &SharedLedger| {
        let taints = tainted(&pool(&state, ledger));
        taints.into_iter().find(|taint| taint.starts_with("whole"))
    };
    assert_eq!(full_entry_taint(&ledger).as_deref(), Some("whole mig-instance=1g.10gb"));
    let take = |uid: &str, id: &DeviceId| {
        let [namespace, name, uid] = ["ns", "c", uid].map(ToOwned::to_owned);
        let claim = ClaimRef { namespace, name, uid };
        ledger.take_for_claim(&claim, &[(state.overlaps.overlap(id), ClaimUse::Exclusive)])
    };
    take("u", &placement.id()).expect("free");
    assert_eq!(full_entry_taint(&ledger), None);
    take("v", &placement.gpu).expect_err("a claim holds a part of it");
}
