//! Items pass through a chain of stages in order, and record their times at each.

use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio_util::sync::CancellationToken;
use windlass_stage::{EndListener, FailureKind, Settings, Source, StageMetrics};

use crate::pipeline::{RunningStage, append_letter, receive_ends, source, stage, with_timeout};

#[tokio::test]
async fn items_pass_three_stages_and_end_once_with_a_visit_each() {
    let store = RunningStage::start(stage("store").work(append_letter(b'c'))).await;
    let classify = RunningStage::start(
        stage("classify").work(append_letter(b'b')).next("store", store.addresses()),
    )
    .await;
    let detect = RunningStage::start(
        stage("detect").work(append_letter(b'a')).next("classify", classify.addresses()),
    )
    .await;
    let mut listener = with_timeout(EndListener::listen(store.addresses())).await;
    let mut source = source("detect", detect.addresses());
    let mut ids = Vec::new();
    for _ in 0..100 {
        ids.push(with_timeout(source.send(Bytes::from_static(b"frame"), None)).await);
    }
    let ends = receive_ends(&mut listener, 100).await;
    with_timeout(source.finish()).await;
    ids.sort_unstable();
    assert_eq!(ends.keys().copied().collect::<Vec<_>>(), ids);
    for end in ends.values() {
        assert_eq!((&end.failure, end.payload_bytes), (&None, 8));
        let stages: Vec<_> = end.visits.iter().map(|visit| visit.stage.as_str()).collect();
        assert_eq!(stages, ["detect", "classify", "store"]);
        assert_eq!(end.visits[0].replica, detect.address.to_string());
    }
}

#[tokio::test]
async fn a_failed_item_ends_as_a_failure_and_no_later_stage_processes_it() {
    let store = RunningStage::start(stage("store").work(append_letter(b'!'))).await;
    let work = |frame: Bytes| async move {
        match &frame[..] {
            b"bad" => Err("no such frame"),
            b"worse" => panic!("out of frames"),
            b"slow" => std::future::pending().await,
            _ => Ok(frame),
        }
    };
    let detect = stage("detect").work(work).next("store", store.addresses());
    let detect = detect.limits(|limits| limits.work_timeout = Duration::from_millis(50));
    let detect = RunningStage::start(detect.replica("edge-1")).await;
    let mut listener = with_timeout(EndListener::listen(store.addresses())).await;
    let mut source = source("detect", detect.addresses());
    for (payload, kind, reason) in [
        (&b"bad"[..], FailureKind::Work, "no such frame"),
        (b"worse", FailureKind::Panic, "panicked: out of frames"),
        (b"slow", FailureKind::WorkTimeout, "did not answer within 50ms"),
    ] {
        let id = with_timeout(source.send(Bytes::from_static(payload), None)).await;
        let end = receive_ends(&mut listener, 1).await.remove(&id).expect("the item");
        let failure = end.failure.expect("a failure");
        let identity = (failure.stage.as_str(), failure.replica.as_str());
        assert_eq!((identity, failure.kind), (("detect", "edge-1"), kind));
        assert_eq!(failure.reason, reason);
        assert_eq!(end.visits[1].processing, Duration::ZERO);
    }
    let id = with_timeout(source.send(Bytes::from_static(b"good"), None)).await;
    let end = receive_ends(&mut listener, 1).await.remove(&id).expect("the item");
    assert_eq!(end.payload_bytes, 5, "the stage continues");
}

#[tokio::test]
async fn the_wait_for_a_slow_stage_is_time_in_its_queue_and_not_on_the_link() {
    let gate = CancellationToken::new();
    let opened = gate.clone();
    let work = move |frame: Bytes| {
        let opened = opened.clone();
        async move {
            opened.cancelled().await;
            tokio::time::sleep(Duration::from_millis(5)).await;
            Ok::<_, std::io::Error>(frame)
        }
    };
    let detect = RunningStage::start(stage("detect").work(work)).await;
    let mut listener = with_timeout(EndListener::listen(detect.addresses())).await;
    let started = Instant::now();
    let settings = Settings { window: 1, ..Settings::default() };
    let addresses = detect.addresses();
    let mut source = Source::connect("camera", "detect", addresses, settings, StageMetrics::new());
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(with_timeout(source.send(Bytes::from_static(b"frame"), None)).await);
    }
    // With one item in flight, the stage has taken all but the last two. On a busy machine their way and the round trip
    // of the connection are long, but no longer than this.
    tokio::time::sleep(4 * started.elapsed()).await;
    gate.cancel();
    let ends = receive_ends(&mut listener, 5).await;
    for id in &ids[1..3] {
        let visit = &ends[id].visits[0];
        assert!(visit.link < visit.queueing / 2, "{visit:?}");
    }
    assert!(ends.values().all(|end| end.visits[0].processing >= Duration::from_millis(5)));
}
