//! Custody: an item is lost to nobody when a stage is killed, drains, or does not take it.

use std::time::Duration;

use bytes::Bytes;
use tokio::{
    sync::{Semaphore, watch},
    time::sleep,
};
use windlass_stage::{Addresses, Builder, Ends, FailureKind};

use std::sync::Arc;

use crate::pipeline::{Running, ends, letter, source, stage, within};

/// Work that counts its items and waits for a permit for each.
pub(crate) struct Gate {
    begun: watch::Sender<usize>,
    permits: Arc<Semaphore>,
}

impl Gate {
    pub(crate) fn closed() -> Self {
        Self { begun: watch::Sender::new(0), permits: Arc::new(Semaphore::new(0)) }
    }

    pub(crate) fn work(&self, builder: Builder) -> Builder {
        let (begun, permits) = (self.begun.clone(), Arc::clone(&self.permits));
        builder.work(move |payload: Bytes| {
            let (begun, permits) = (begun.clone(), Arc::clone(&permits));
            async move {
                begun.send_modify(|count| *count += 1);
                permits.acquire().await?.forget();
                Ok::<_, tokio::sync::AcquireError>(payload)
            }
        })
    }

    /// Waits until the work has begun that many items.
    pub(crate) async fn has_begun(&self, count: usize) {
        let mut begun = self.begun.subscribe();
        within(begun.wait_for(|begun| *begun >= count)).await.expect("the sender is here");
    }

    pub(crate) fn open(&self) {
        self.permits.add_permits(Semaphore::MAX_PERMITS / 2);
    }
}

/// Both addresses as one.
fn both(one: &Running, other: &Running) -> Addresses {
    [one, other].into_iter().map(|running| running.address.clone()).collect()
}

const FRAME: Bytes = Bytes::from_static(b"frame");

#[tokio::test]
async fn items_on_a_killed_replica_end_as_failures_that_name_it_and_the_others_go_on() {
    let last = Running::start(stage("store")).await;
    let gate = Gate::closed();
    let stuck = stage("detect").next("store", last.addresses()).replica("stuck");
    let stuck = Running::start(gate.work(stuck)).await;
    let well = stage("detect").next("store", last.addresses()).replica("well");
    let well = Running::start(well.work(letter(b'!'))).await;
    let mut listener = within(Ends::listen(last.addresses())).await;
    let mut source = source("detect", both(&stuck, &well));
    for _ in 0..40 {
        within(source.send(FRAME, None)).await;
    }
    gate.has_begun(1).await;
    drop(stuck);
    for _ in 0..10 {
        within(source.send(FRAME, None)).await;
    }
    let all = ends(&mut listener, 50).await;
    within(source.finish()).await;
    let failures: Vec<_> = all.values().filter_map(|end| end.failure.as_ref()).collect();
    assert!((1..=13).contains(&failures.len()), "window, queue and work: {}", failures.len());
    for failure in failures {
        assert_eq!(failure.kind, FailureKind::Stopped);
        assert_eq!(failure.to_string(), "detect (stuck): the stage stopped while it had the item");
    }
}

#[tokio::test]
async fn a_drain_under_load_loses_nothing() {
    let last = Running::start(stage("store")).await;
    let replica = || stage("detect").next("store", last.addresses()).work(letter(b'!'));
    let (one, other) = (Running::start(replica()).await, Running::start(replica()).await);
    let mut listener = within(Ends::listen(last.addresses())).await;
    let mut source = source("detect", both(&one, &other));
    let sending = async {
        for _ in 0..500 {
            within(source.send(FRAME, None)).await;
        }
        within(source.finish()).await;
    };
    let draining = async {
        // Some items first.
        let mut first = ends(&mut listener, 100).await;
        one.drain().await;
        first.append(&mut ends(&mut listener, 400).await);
        first
    };
    let ((), all) = tokio::join!(sending, draining);
    assert!(all.values().all(|end| end.failure.is_none()));
}

#[tokio::test]
async fn stages_of_one_pod_that_drain_together_lose_nothing() {
    let last = Running::start(stage("store")).await;
    let gate = Gate::closed();
    let decode = gate.work(stage("decode").next("store", last.addresses()));
    let decode = Running::start(decode).await;
    let camera = Running::start(stage("camera").next("decode", decode.addresses())).await;
    let mut listener = within(Ends::listen(last.addresses())).await;
    let mut source = source("camera", camera.addresses());
    // More than the window: the camera has items when the only stage that could take them drains.
    for _ in 0..14 {
        within(source.send(FRAME, None)).await;
    }
    gate.has_begun(1).await;
    let opening = async {
        sleep(Duration::from_millis(50)).await;
        gate.open();
        ends(&mut listener, 14).await
    };
    let ((), (), all) = tokio::join!(decode.drain(), camera.drain(), opening);
    assert!(all.values().all(|end| end.failure.is_none()), "{all:?}");
    within(source.finish()).await;
}

#[tokio::test]
async fn a_stage_that_stands_still_holds_the_source_back() {
    let gate = Gate::closed();
    let last = Running::start(gate.work(stage("store"))).await;
    let first = Running::start(stage("detect").next("store", last.addresses())).await;
    let mut listener = within(Ends::listen(last.addresses())).await;
    let mut source = source("detect", first.addresses());
    let mut sent = 0;
    // Much longer than an item takes.
    while let Some(_id) = tokio::select! {
        id = source.send(FRAME, None) => Some(id),
        () = sleep(Duration::from_millis(300)) => None,
    } {
        sent += 1;
        assert!(sent < 100, "nothing holds the source back");
    }
    // Two windows of 8, two queues of 4, and the items in hand.
    assert!((20..=32).contains(&sent), "{sent}");
    gate.open();
    ends(&mut listener, sent).await;
    within(source.finish()).await;
}
