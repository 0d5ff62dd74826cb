//! Custody: every item arrives or fails with a reason when a stage is killed, drains, or accepts no items.

use std::time::Duration;

use bytes::Bytes;
use tokio::{
    sync::{Semaphore, watch},
    time::sleep,
};
use windlass_stage::{Addresses, Builder, EndListener, FailureKind};

use std::sync::Arc;

use crate::pipeline::{RunningStage, append_letter, receive_ends, source, stage, with_timeout};

/// Work function that counts its calls, and waits for a permit in each.
pub(crate) struct Gate {
    started: watch::Sender<usize>,
    permits: Arc<Semaphore>,
}

impl Gate {
    pub(crate) fn closed() -> Self {
        Self { started: watch::Sender::new(0), permits: Arc::new(Semaphore::new(0)) }
    }

    pub(crate) fn work(&self, builder: Builder) -> Builder {
        let (started, permits) = (self.started.clone(), Arc::clone(&self.permits));
        builder.work(move |payload: Bytes| {
            let (started, permits) = (started.clone(), Arc::clone(&permits));
            async move {
                started.send_modify(|count| *count += 1);
                permits.acquire().await?.forget();
                Ok::<_, tokio::sync::AcquireError>(payload)
            }
        })
    }

    /// Waits until processing of `count` items has started.
    pub(crate) async fn wait_for_starts(&self, count: usize) {
        let mut started = self.started.subscribe();
        with_timeout(started.wait_for(|started| *started >= count))
            .await
            .expect("the sender is here");
    }

    pub(crate) fn open(&self) {
        self.permits.add_permits(Semaphore::MAX_PERMITS / 2);
    }
}

/// The addresses of both replicas.
fn both_addresses(first: &RunningStage, second: &RunningStage) -> Addresses {
    [first, second].into_iter().map(|stage| stage.address.clone()).collect()
}

const FRAME: Bytes = Bytes::from_static(b"frame");

#[tokio::test]
async fn items_on_a_killed_replica_end_as_failures_that_name_it_and_the_others_continue() {
    let store = RunningStage::start(stage("store")).await;
    let gate = Gate::closed();
    let blocked = stage("detect").next("store", store.addresses()).replica("blocked");
    let blocked = RunningStage::start(gate.work(blocked)).await;
    let healthy = stage("detect").next("store", store.addresses()).replica("healthy");
    let healthy = RunningStage::start(healthy.work(append_letter(b'!'))).await;
    let mut listener = with_timeout(EndListener::listen(store.addresses())).await;
    let mut source = source("detect", both_addresses(&blocked, &healthy));
    for _ in 0..40 {
        with_timeout(source.send(FRAME, None)).await;
    }
    gate.wait_for_starts(1).await;
    drop(blocked);
    for _ in 0..10 {
        with_timeout(source.send(FRAME, None)).await;
    }
    let ends = receive_ends(&mut listener, 50).await;
    with_timeout(source.finish()).await;
    let failures: Vec<_> = ends.values().filter_map(|end| end.failure.as_ref()).collect();
    assert!(
        (1..=13).contains(&failures.len()),
        "{} failures, of 1 to 13 in window, queue and work",
        failures.len()
    );
    for failure in failures {
        assert_eq!(failure.kind, FailureKind::Stopped);
        assert_eq!(
            failure.to_string(),
            "detect (blocked): the stage stopped while it had the item"
        );
    }
}

#[tokio::test]
async fn a_drain_under_load_loses_nothing() {
    let store = RunningStage::start(stage("store")).await;
    let replica = || stage("detect").next("store", store.addresses()).work(append_letter(b'!'));
    let (first, second) =
        (RunningStage::start(replica()).await, RunningStage::start(replica()).await);
    let mut listener = with_timeout(EndListener::listen(store.addresses())).await;
    let mut source = source("detect", both_addresses(&first, &second));
    let sending = async {
        for _ in 0..500 {
            with_timeout(source.send(FRAME, None)).await;
        }
        with_timeout(source.finish()).await;
    };
    let drain_during_load = async {
        // Drain in the middle of the load.
        let mut ends = receive_ends(&mut listener, 100).await;
        first.drain().await;
        ends.append(&mut receive_ends(&mut listener, 400).await);
        ends
    };
    let ((), ends) = tokio::join!(sending, drain_during_load);
    assert!(ends.values().all(|end| end.failure.is_none()));
}

#[tokio::test]
async fn stages_of_one_pod_that_drain_together_lose_nothing() {
    let store = RunningStage::start(stage("store")).await;
    let gate = Gate::closed();
    let decode = gate.work(stage("decode").next("store", store.addresses()));
    let decode = RunningStage::start(decode).await;
    let camera = RunningStage::start(stage("camera").next("decode", decode.addresses())).await;
    let mut listener = with_timeout(EndListener::listen(store.addresses())).await;
    let mut source = source("camera", camera.addresses());
    // More than the window: the camera still has items when its only next stage drains.
    for _ in 0..14 {
        with_timeout(source.send(FRAME, None)).await;
    }
    gate.wait_for_starts(1).await;
    let open_and_receive = async {
        sleep(Duration::from_millis(50)).await;
        gate.open();
        receive_ends(&mut listener, 14).await
    };
    let ((), (), ends) = tokio::join!(decode.drain(), camera.drain(), open_and_receive);
    assert!(ends.values().all(|end| end.failure.is_none()), "{ends:?}");
    with_timeout(source.finish()).await;
}

#[tokio::test]
async fn a_blocked_stage_applies_back_pressure_to_the_source() {
    let gate = Gate::closed();
    let store = RunningStage::start(gate.work(stage("store"))).await;
    let detect = RunningStage::start(stage("detect").next("store", store.addresses())).await;
    let mut listener = with_timeout(EndListener::listen(store.addresses())).await;
    let mut source = source("detect", detect.addresses());
    let mut sent_count = 0;
    // Much longer than the time of an item.
    while let Some(_id) = tokio::select! {
        id = source.send(FRAME, None) => Some(id),
        () = sleep(Duration::from_millis(300)) => None,
    } {
        sent_count += 1;
        assert!(sent_count < 100, "there is no back-pressure");
    }
    // Two windows of 8, two queues of 4, and the items in processing or in transit.
    assert!((20..=32).contains(&sent_count), "{sent_count}");
    gate.open();
    receive_ends(&mut listener, sent_count).await;
    with_timeout(source.finish()).await;
}
