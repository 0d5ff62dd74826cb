//! Steps of the ledger: which are allowed, and which are refused.

mod model;

use windlass_config::ShareMethod;

use super::*;

pub(crate) fn without_overlaps(id: &str) -> Overlap {
    Overlap { device: id.parse().expect("an id"), overlapping: Arc::default() }
}

fn part_of(id: &str, whole: &str) -> Overlap {
    Overlap {
        overlapping: Arc::new([whole.parse().expect("an id")].into()),
        ..without_overlaps(id)
    }
}

fn claim(name: &str) -> ClaimRef {
    let [namespace, name, uid] = ["ns", name, name].map(ToOwned::to_owned);
    ClaimRef { namespace, name, uid }
}

pub(crate) fn resource() -> ResourceName {
    "nvidia.com/gpu".parse().expect("a name")
}

#[test]
fn of_a_container_and_a_claim_the_second_is_refused_with_the_holder() {
    let ledger = SharedLedger::default();
    ledger.take_for_container(&resource(), &[without_overlaps("a")]).expect("free");
    let refused =
        ledger.take_for_claim(&claim("c"), &[(without_overlaps("a"), ClaimUse::Exclusive)]);
    let error = refused.expect_err("held").to_string();
    assert_eq!(error, "a is held by a container, as nvidia.com/gpu");
    ledger
        .take_for_claim(&claim("c"), &[(without_overlaps("b"), ClaimUse::Exclusive)])
        .expect("free");
    let refused = ledger.take_for_container(&resource(), &[without_overlaps("b")]);
    assert_eq!(refused.expect_err("held").to_string(), "b is held by another claim");
}

#[test]
fn a_held_partition_blocks_its_gpu_and_a_refusal_takes_no_device() {
    let ledger = SharedLedger::default();
    ledger
        .take_for_claim(&claim("c"), &[(part_of("part", "a"), ClaimUse::Exclusive)])
        .expect("free");
    let whole = Overlap {
        overlapping: Arc::new(["part".parse().expect("an id")].into()),
        ..without_overlaps("a")
    };
    ledger.take_for_container(&resource(), &[without_overlaps("b"), whole]).expect_err("held");
    ledger
        .take_for_claim(&claim("d"), &[(without_overlaps("b"), ClaimUse::Exclusive)])
        .expect("b was not taken");
}

#[test]
fn shares_coexist_and_admin_access_blocks_no_holder() {
    let ledger = SharedLedger::default();
    for (name, usage) in
        [("c", ClaimUse::UnsizedShare), ("d", ClaimUse::UnsizedShare), ("admin", ClaimUse::Admin)]
    {
        ledger.take_for_claim(&claim(name), &[(without_overlaps("a"), usage)]).expect(name);
    }
    ledger
        .take_for_claim(&claim("e"), &[(without_overlaps("a"), ClaimUse::Exclusive)])
        .expect_err("shared");
    ledger.release_claim("c");
    ledger.release_claim("d");
    ledger
        .take_for_claim(&claim("e"), &[(without_overlaps("a"), ClaimUse::Exclusive)])
        .expect("free");
    ledger
        .take_for_claim(&claim("e"), &[(without_overlaps("a"), ClaimUse::Exclusive)])
        .expect("its own");
}

#[test]
fn a_share_beyond_the_devices_number_is_refused() {
    let ledger = SharedLedger::default();
    let take = |name: &str, count| {
        let usage = ClaimUse::Shares(Shares { count, of: 4 });
        let result = ledger.take_for_claim(&claim(name), &[(without_overlaps("a"), usage)]);
        result.map_err(|conflict| conflict.to_string())
    };
    take("c", 2).expect("free");
    take("d", 1).expect("room");
    take("c", 2).expect("its own");
    let error = take("e", 2).expect_err("one is left");
    assert!(error.starts_with("a: 2 of its 4 shares requested, and 1 left by other claims"));
    ledger.restore_claim(
        &claim("recorded"),
        [(&without_overlaps("a").device, ClaimUse::UnsizedShare)],
    );
    take("e", 1).expect_err("a claim known from the kubelet only has at least one");
    ledger.release_claim("c");
    take("e", 1).expect("room again");
    let device = without_overlaps("a").device;
    let share = |count| ClaimUse::Shares(Shares { count, of: 4 });
    let combined_uses = combined([(&device, share(1)), (&device, share(2))]);
    assert_eq!(combined_uses[&device], share(3), "two shares of a claim count both");
}

fn portion(memory: u64, compute: u64) -> ClaimUse {
    ClaimUse::Portion(Portion { method: ShareMethod::Mps, shares: 1, memory, of: 100, compute })
}

#[test]
fn shares_by_amounts_coexist_until_they_exceed_the_device() {
    let ledger = SharedLedger::default();
    let take = |name: &str, usage| {
        let result = ledger.take_for_claim(&claim(name), &[(without_overlaps("a"), usage)]);
        result.map_err(|conflict| conflict.to_string())
    };
    take("c", portion(40, 50)).expect("free");
    take("d", portion(40, 0)).expect("room");
    take("d", portion(40, 0)).expect("its own");
    let error = take("e", portion(30, 10)).expect_err("too much memory");
    assert_eq!(
        error,
        "a: 30 MiB of memory and 10 % of compute are requested, and other claims leave 20 of 100 MiB and 50 %"
    );
    take("e", portion(10, 60)).expect_err("too much compute");
    take("e", ClaimUse::UnsizedShare).expect_err("replicas and amounts exclude each other");
    take("e", ClaimUse::Exclusive).expect_err("shared");
    ledger.release_claim("c");
    take("e", portion(60, 100)).expect("room again");
}

#[test]
fn pods_with_shares_and_claims_add_up_and_exclude_whole_devices() {
    let ledger = SharedLedger::default();
    let portion = |memory| {
        let method = ShareMethod::TimeSlicing;
        ClaimUse::Portion(Portion { method, shares: 1, memory, of: 100, compute: 0 })
    };
    let pod = ClaimRef::of_share("ns", "p", "1");
    ledger.take_for_claim(&pod, &[(without_overlaps("a"), portion(40))]).expect("free");
    ledger.take_for_claim(&claim("c"), &[(without_overlaps("a"), portion(50))]).expect("it fits");
    let refused = ledger.take_for_claim(&claim("d"), &[(without_overlaps("a"), portion(20))]);
    assert!(matches!(refused, Err(Conflict::AmountExceeded { left: 10, .. })), "{refused:?}");
    let refused =
        ledger.take_for_container(&resource(), &[without_overlaps("a")]).expect_err("shared");
    assert!(refused.to_string().contains("a is held by"), "{refused}");
    ledger
        .take_for_claim(&claim("d"), &[(without_overlaps("b"), ClaimUse::Exclusive)])
        .expect("free");
    ledger.take_for_container(&resource(), &[without_overlaps("e")]).expect("free");
    let snapshot = ledger.watch().borrow().clone();
    let excluded = ["a", "b", "e", "f"].map(|id| snapshot.excludes_shares(&without_overlaps(id)));
    assert_eq!(excluded, [false, true, true, false]);
    let memory = snapshot.portion(&"a".parse().expect("an id")).map(|total| total.memory);
    assert_eq!(memory, Some(90));
    assert!(snapshot.is_shared_by_pods(&"a".parse().expect("an id")));
}

#[test]
fn two_shares_of_a_claim_count_both() {
    let device = without_overlaps("a").device;
    let combined_uses = combined([(&device, portion(60, 10)), (&device, portion(40, 0))]);
    let usage = combined_uses[&device];
    assert!(usage.needs_daemon(), "two shares need a daemon, even if they add up to the whole");
    let ledger = SharedLedger::default();
    ledger.restore_claim(&claim("c"), combined_uses);
    ledger
        .take_for_claim(&claim("d"), &[(without_overlaps("a"), portion(1, 0))])
        .expect_err("full");
}

#[test]
fn a_claim_with_less_than_the_whole_device_needs_an_mps_daemon() {
    let ledger = SharedLedger::default();
    let daemons = || Ledger::mps_devices(ledger.watch().borrow().claims()).required;
    ledger.take_for_claim(&claim("c"), &[(without_overlaps("a"), portion(100, 0))]).expect("free");
    assert!(daemons().is_empty(), "a claim with the whole needs no daemon");
    for name in ["d", "e"] {
        ledger
            .take_for_claim(&claim(name), &[(without_overlaps("b"), portion(50, 0))])
            .expect("room");
    }
    ledger.release_claim("d");
    assert_eq!(daemons(), [without_overlaps("b").device].into());
    ledger.release_claim("e");
    assert!(daemons().is_empty());
}

#[test]
fn an_allocated_device_is_held_until_the_checkpoint_should_contain_it() {
    let (ledger, delay) = (SharedLedger::default(), Duration::from_secs(2));
    ledger.take_for_container(&resource(), &[without_overlaps("a")]).expect("free");
    let (now, empty_checkpoint) = (Instant::now(), RecordedDevices::default());
    ledger.apply_checkpoint(&empty_checkpoint, now + delay * 10, delay);
    ledger
        .take_for_claim(&claim("c"), &[(without_overlaps("a"), ClaimUse::Exclusive)])
        .expect_err("held");
    ledger.apply_checkpoint(&empty_checkpoint, now + CHECKPOINT_GRACE, delay);
    ledger
        .take_for_claim(&claim("c"), &[(without_overlaps("a"), ClaimUse::Exclusive)])
        .expect("the allocation never reached the checkpoint");
}

#[test]
fn a_device_that_leaves_the_checkpoint_is_free_at_once() {
    let (ledger, delay) = (SharedLedger::default(), Duration::from_secs(2));
    ledger.take_for_container(&resource(), &[without_overlaps("a")]).expect("free");
    let devices = [("a".parse().expect("an id"), resource())].into();
    let recorded = RecordedDevices { devices, ..RecordedDevices::default() };
    let now = Instant::now() + delay;
    ledger.apply_checkpoint(&recorded, now, delay);
    ledger.apply_checkpoint(&RecordedDevices::default(), now, delay);
    ledger
        .take_for_claim(&claim("c"), &[(without_overlaps("a"), ClaimUse::Exclusive)])
        .expect("free");
}

#[test]
fn a_checkpoint_read_before_an_allocate_shows_the_earlier_holder() {
    let (ledger, delay) = (SharedLedger::default(), Duration::from_secs(2));
    let devices = [("a".parse().expect("an id"), resource())].into();
    let (recorded, read_at) =
        (RecordedDevices { devices, ..RecordedDevices::default() }, Instant::now());
    ledger.take_for_container(&resource(), &[without_overlaps("a")]).expect("free");
    ledger.apply_checkpoint(&recorded, read_at, delay);
    ledger.apply_checkpoint(&RecordedDevices::default(), read_at + delay * 10, delay);
    ledger
        .take_for_claim(&claim("c"), &[(without_overlaps("a"), ClaimUse::Exclusive)])
        .expect_err("not recorded yet");
}

#[test]
fn a_device_in_the_checkpoint_is_held_after_a_restart() {
    let ledger = SharedLedger::default();
    let devices = [("a".parse().expect("an id"), resource())].into();
    let recorded = RecordedDevices { devices, ..RecordedDevices::default() };
    ledger.apply_checkpoint(&recorded, Instant::now(), Duration::ZERO);
    ledger
        .take_for_claim(&claim("c"), &[(without_overlaps("a"), ClaimUse::Exclusive)])
        .expect_err("held");
}

#[test]
fn before_the_checkpoint_is_read_a_claim_gets_only_its_own_devices() {
    let ledger = SharedLedger::with_unknown_containers();
    ledger.restore_claim(&claim("c"), [(&without_overlaps("a").device, ClaimUse::Exclusive)]);
    ledger
        .take_for_claim(&claim("c"), &[(without_overlaps("a"), ClaimUse::Exclusive)])
        .expect("its own");
    let refused =
        ledger.take_for_claim(&claim("d"), &[(without_overlaps("b"), ClaimUse::Exclusive)]);
    assert!(refused.expect_err("unknown").to_string().starts_with("b cannot be taken yet"));
    ledger.take_for_container(&resource(), &[without_overlaps("a")]).expect_err("a claim's");
    ledger.apply_checkpoint(&RecordedDevices::default(), Instant::now(), Duration::ZERO);
    ledger
        .take_for_claim(&claim("d"), &[(without_overlaps("b"), ClaimUse::Exclusive)])
        .expect("free");
    ledger.mark_containers_unknown();
    ledger
        .take_for_claim(&claim("e"), &[(without_overlaps("c"), ClaimUse::Exclusive)])
        .expect_err("unknown again");
}

#[test]
fn devices_of_a_pool_are_held_while_one_of_its_tokens_is() {
    let ledger = SharedLedger::default();
    ledger
        .take_for_container(&resource(), &[without_overlaps("a"), without_overlaps("b")])
        .expect("free");
    let tokens = RecordedDevices { pools: [resource()].into(), ..RecordedDevices::default() };
    ledger.apply_checkpoint(&tokens, Instant::now(), Duration::ZERO);
    ledger
        .take_for_claim(&claim("c"), &[(without_overlaps("b"), ClaimUse::Exclusive)])
        .expect_err("held");
    ledger.apply_checkpoint(&RecordedDevices::default(), Instant::now(), Duration::ZERO);
    ledger
        .take_for_claim(&claim("c"), &[(without_overlaps("b"), ClaimUse::Exclusive)])
        .expect("released");
}

#[tokio::test(start_paused = true)]
async fn a_pause_of_the_agent_does_not_count_against_an_allocation() {
    let (ledger, empty_checkpoint) = (SharedLedger::default(), RecordedDevices::default());
    ledger.take_for_container(&resource(), &[without_overlaps("a")]).expect("free");
    let pause = CHECKPOINT_GRACE * 2;
    tokio::time::advance(pause).await;
    ledger.shift_for_pause(pause);
    let is_held = || {
        ledger.take_for_claim(&claim("c"), &[(without_overlaps("a"), ClaimUse::Exclusive)]).is_err()
    };
    ledger.apply_checkpoint(&empty_checkpoint, Instant::now(), Duration::ZERO);
    assert!(is_held(), "the kubelet had no time to write its checkpoint");
    tokio::time::advance(CHECKPOINT_GRACE).await;
    ledger.apply_checkpoint(&empty_checkpoint, Instant::now(), Duration::ZERO);
    assert!(!is_held(), "the kubelet had time");
}
