//! Items that fail at a stage: late, too large, or with a wrong number of results. The stage continues.

use std::time::Duration;

use bytes::Bytes;
use windlass_stage::{End, EndListener, FailureKind};

use crate::{
    custody::Gate,
    pipeline::{RunningStage, receive_ends, source, stage, with_timeout},
};

fn failure(end: &End) -> (&str, FailureKind, &str) {
    let failure = end.failure.as_ref().expect("a failure");
    (&failure.stage, failure.kind, &failure.reason)
}

#[tokio::test]
async fn an_item_whose_deadline_passes_in_the_queue_is_not_processed() {
    let gate = Gate::closed();
    let detect = RunningStage::start(gate.work(stage("detect"))).await;
    let mut listener = with_timeout(EndListener::listen(detect.addresses())).await;
    let mut source = source("detect", detect.addresses());
    let first_id = with_timeout(source.send(Bytes::from_static(b"1"), None)).await;
    gate.wait_for_starts(1).await;
    let send_late = source.send(Bytes::from_static(b"2"), Some(Duration::from_millis(50)));
    let late_id = with_timeout(send_late).await;
    tokio::time::sleep(Duration::from_millis(80)).await;
    gate.open();
    let ends = receive_ends(&mut listener, 2).await;
    assert_eq!(ends[&first_id].failure, None);
    let reason = "deadline passed in the queue of detect";
    assert_eq!(failure(&ends[&late_id]), ("detect", FailureKind::Deadline, reason));
    gate.wait_for_starts(1).await;
}

#[tokio::test]
async fn an_item_without_a_replica_waits_and_fails_at_its_deadline() {
    let store = RunningStage::start(stage("store")).await;
    let folder = tempfile::tempdir().expect("a folder");
    let address = format!("unix:{}", folder.path().join("detect.sock").display());
    let mut source =
        source("detect", address.parse::<windlass_stage::Addresses>().expect("addresses"));
    let deadline = Some(Duration::from_millis(20));
    let id = with_timeout(source.send(Bytes::from_static(b"x"), deadline)).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let detect = stage("detect").listen(address.parse().expect("an address"));
    let _detect = RunningStage::start(detect.next("store", store.addresses())).await;
    let mut listener = with_timeout(EndListener::listen(store.addresses())).await;
    let end = receive_ends(&mut listener, 1).await.remove(&id).expect("the item");
    let reason = "deadline passed on the way to detect";
    assert_eq!(failure(&end), ("camera", FailureKind::Deadline, reason));
    let id = with_timeout(source.send(Bytes::from_static(b"x"), None)).await;
    let end = receive_ends(&mut listener, 1).await.remove(&id).expect("the item");
    assert_eq!(end.failure, None, "an address that appears later is used");
}

#[tokio::test]
async fn a_payload_above_the_limit_of_either_side_fails_and_the_stream_stays_open() {
    const MIB: usize = 1024 * 1024;
    let store =
        RunningStage::start(stage("store").limits(|limits| limits.max_payload = 1000)).await;
    let grow = |payload: Bytes| async move { Ok::<_, std::io::Error>(payload.repeat(11)) };
    let detect =
        RunningStage::start(stage("detect").work(grow).next("store", store.addresses())).await;
    let mut listener = with_timeout(EndListener::listen(store.addresses())).await;
    let mut source = source("detect", detect.addresses());
    let large_id = with_timeout(source.send(vec![0; 16 * MIB + 1].into(), None)).await;
    let grown_id = with_timeout(source.send(vec![0; 100].into(), None)).await;
    let fitting_id = with_timeout(source.send(vec![0; 90].into(), None)).await;
    let ends = receive_ends(&mut listener, 3).await;
    let reason = "is 17 MiB, the limit is 16 MiB";
    assert_eq!(failure(&ends[&large_id]), ("camera", FailureKind::TooLarge, reason));
    let reason = "is 1100 bytes, the limit is 1000 bytes";
    assert_eq!(failure(&ends[&grown_id]), ("detect", FailureKind::TooLarge, reason));
    assert_eq!((&ends[&fitting_id].failure, ends[&fitting_id].payload_bytes), (&None, 990));
}

#[tokio::test]
async fn a_batch_is_one_call_and_a_wrong_number_of_results_fails_it() {
    let work = |mut batch: Vec<Bytes>| async move {
        if batch.iter().any(|payload| &payload[..] == b"lost") {
            batch.pop();
        }
        let size = u8::try_from(batch.len()).unwrap_or(u8::MAX);
        Ok::<_, std::io::Error>(batch.iter().map(|_| vec![0; size.into()].into()).collect())
    };
    let detect = stage("detect").batch(4, work).limits(|limits| {
        limits.batch_wait = Duration::from_secs(20);
    });
    let detect = RunningStage::start(detect).await;
    let mut listener = with_timeout(EndListener::listen(detect.addresses())).await;
    let mut source = source("detect", detect.addresses());
    for payload in ["a", "b", "c", "d", "e", "f", "lost", "h"] {
        with_timeout(source.send(Bytes::from_static(payload.as_bytes()), None)).await;
    }
    let ends: Vec<_> = receive_ends(&mut listener, 8).await.into_values().collect();
    assert!(ends[..4].iter().all(|end| end.payload_bytes == 4), "one call had all four");
    for end in &ends[4..] {
        let reason = "returned 3 results for 4 items";
        assert_eq!(failure(end), ("detect", FailureKind::WrongResultCount, reason));
    }
}

#[tokio::test]
async fn a_reason_above_the_limit_of_a_message_is_shortened_and_the_stream_stays_open() {
    const MIB: usize = 1024 * 1024;
    let store = RunningStage::start(stage("store")).await;
    let work = |payload: Bytes| async move {
        if payload.is_empty() {
            Err(std::io::Error::other("x".repeat(20 * MIB)))
        } else {
            Ok(payload)
        }
    };
    let detect =
        RunningStage::start(stage("detect").work(work).next("store", store.addresses())).await;
    let mut listener = with_timeout(EndListener::listen(store.addresses())).await;
    let mut source = source("detect", detect.addresses());
    let failed_id = with_timeout(source.send(Bytes::new(), None)).await;
    let passed_id = with_timeout(source.send(Bytes::from_static(b"y"), None)).await;
    let ends = receive_ends(&mut listener, 2).await;
    let (stage, kind, reason) = failure(&ends[&failed_id]);
    assert_eq!((stage, kind), ("detect", FailureKind::Work));
    assert!(reason.len() < 3000, "{}", reason.len());
    assert_eq!(ends[&passed_id].failure, None);
}

#[tokio::test]
async fn a_limit_of_zero_is_refused() {
    let error = stage("detect").workers(0).bind().await.expect_err("no workers").to_string();
    assert_eq!(error, "stage detect: workers is 0: write at least 1");
}
