//! A split sends an item along two paths, and a join merges its parts into one item.

use std::time::Duration;

use bytes::Bytes;
use windlass_stage::{Builder, EndListener, FailureKind};

use crate::{
    custody::Gate,
    pipeline::{RunningStage, append_letter, receive_ends, source, stage, with_timeout},
};

/// A join that concatenates the parts in the order of its previous stages.
fn join() -> Builder {
    let concat = |parts: Vec<Bytes>| async move { Ok::<_, std::io::Error>(parts.concat()) };
    stage("fuse").previous("left").previous("right").join(concat)
}

#[tokio::test]
async fn parts_of_a_split_meet_at_one_replica_of_the_join_and_end_once() {
    let store = RunningStage::start(stage("store")).await;
    let fuse = || join().next("store", store.addresses());
    let (first_fuse, second_fuse) =
        (RunningStage::start(fuse()).await, RunningStage::start(fuse()).await);
    let fuse_addresses =
        || [&first_fuse, &second_fuse].into_iter().map(|join| join.address.clone()).collect();
    let left =
        RunningStage::start(stage("left").work(append_letter(b'l')).next("fuse", fuse_addresses()))
            .await;
    let right = stage("right").work(|payload: Bytes| async move {
        match &payload[..] {
            b"bad" => Err("no mask"),
            _ => Ok([&payload[..], b"rr"].concat()),
        }
    });
    let right = RunningStage::start(right.next("fuse", fuse_addresses())).await;
    let split = stage("split").next("left", left.addresses()).next("right", right.addresses());
    let split = RunningStage::start(split).await;
    let mut listener = with_timeout(EndListener::listen(store.addresses())).await;
    let mut source = source("split", split.addresses());
    for _ in 0..50 {
        with_timeout(source.send(Bytes::from_static(b"good"), None)).await;
    }
    let bad_id = with_timeout(source.send(Bytes::from_static(b"bad"), None)).await;
    let mut ends = receive_ends(&mut listener, 51).await;
    with_timeout(source.finish()).await;

    let failure = ends.remove(&bad_id).expect("the item").failure.expect("a part failed");
    assert_eq!((failure.stage.as_str(), failure.reason.as_str()), ("right", "no mask"));
    let mut counts = [0, 0];
    for end in ends.values() {
        assert_eq!((&end.failure, end.payload_bytes), (&None, 4 + 1 + 4 + 2));
        let mut stages: Vec<_> = end.visits.iter().map(|visit| visit.stage.as_str()).collect();
        assert_eq!((stages[0], &stages[3..]), ("split", &["fuse", "store"][..]));
        stages[1..3].sort_unstable();
        assert_eq!(stages[1..3], ["left", "right"]);
        counts[usize::from(end.visits[3].replica == first_fuse.address.to_string())] += 1;
    }
    assert!(counts.iter().all(|count| *count > 0), "both replicas joined items: {counts:?}");
}

#[tokio::test]
async fn a_missing_part_fails_its_item_and_frees_space_for_the_next() {
    let store = RunningStage::start(stage("store")).await;
    let fuse = join().next("store", store.addresses()).limits(|limits| {
        limits.join_timeout = Duration::from_millis(100);
        limits.join_capacity = 2;
    });
    let fuse = RunningStage::start(fuse).await;
    let left = RunningStage::start(stage("left").next("fuse", fuse.addresses())).await;
    let mut listener = with_timeout(EndListener::listen(store.addresses())).await;
    let mut source = source("left", left.addresses());
    for _ in 0..5 {
        with_timeout(source.send(Bytes::from_static(b"half"), None)).await;
    }
    for end in receive_ends(&mut listener, 5).await.into_values() {
        let failure = end.failure.expect("a failure for the missing part");
        let received = (failure.stage.as_str(), failure.reason.as_str(), failure.kind);
        assert_eq!(received, ("fuse", "part from right did not come", FailureKind::MissingPart));
    }
    with_timeout(source.finish()).await;
}

#[tokio::test]
async fn a_late_part_of_an_item_that_has_failed_is_passed_before_a_split_too() {
    let (one, two) =
        (RunningStage::start(stage("one")).await, RunningStage::start(stage("two")).await);
    let fuse = join().next("one", one.addresses()).next("two", two.addresses());
    let fuse = RunningStage::start(fuse).await;
    let failing_work = |_: Bytes| async move { Err::<Bytes, _>("no mask") };
    let left =
        RunningStage::start(stage("left").work(failing_work).next("fuse", fuse.addresses())).await;
    let gate = Gate::closed();
    let right = gate.work(stage("right").next("fuse", fuse.addresses()));
    let right = RunningStage::start(right).await;
    let split = stage("split").next("left", left.addresses()).next("right", right.addresses());
    let split = RunningStage::start(split).await;
    let mut listeners = [
        with_timeout(EndListener::listen(one.addresses())).await,
        with_timeout(EndListener::listen(two.addresses())).await,
    ];
    let mut source = source("split", split.addresses());
    with_timeout(source.send(Bytes::from_static(b"x"), None)).await;
    for listener in &mut listeners {
        assert!(receive_ends(listener, 1).await.values().all(|end| end.failure.is_some()));
    }
    gate.wait_for_starts(1).await;
    gate.open();
    // The drain returns once the part is passed.
    right.drain().await;
    with_timeout(source.finish()).await;
}

#[tokio::test]
async fn a_full_table_of_a_join_blocks_the_stream_that_is_ahead() {
    let store = RunningStage::start(stage("store")).await;
    let fuse = join().next("store", store.addresses()).limits(|limits| limits.join_capacity = 3);
    let fuse = RunningStage::start(fuse).await;
    let mut listener = with_timeout(EndListener::listen(store.addresses())).await;
    let gate = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    let permits = std::sync::Arc::clone(&gate);
    let slow = move |payload: Bytes| {
        let permits = std::sync::Arc::clone(&permits);
        async move {
            permits.acquire().await?.forget();
            Ok::<_, tokio::sync::AcquireError>(payload)
        }
    };
    let left = RunningStage::start(stage("left").next("fuse", fuse.addresses())).await;
    let right = RunningStage::start(stage("right").work(slow).next("fuse", fuse.addresses())).await;
    let split = stage("split").next("left", left.addresses()).next("right", right.addresses());
    let split = RunningStage::start(split).await;
    let mut source = source("split", split.addresses());
    let sending = async {
        for _ in 0..60 {
            with_timeout(source.send(Bytes::from_static(b"x"), None)).await;
        }
        with_timeout(source.finish()).await;
    };
    let release_and_receive = async {
        for _ in 0..60 {
            gate.add_permits(1);
            let end = receive_ends(&mut listener, 1).await;
            assert!(end.values().all(|end| end.failure.is_none()), "{end:?}");
        }
    };
    tokio::join!(sending, release_and_receive);
}
