//! Each item ends exactly once while stages are killed and drained at random moments.
//!
//! Items are sent in waves, and in each wave one replica is killed or drained. The next wave starts when all items have
//! ended and the previous stages have detected the lost stream: custody survives one death at a time (docs/stages.md).

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::Duration,
};

use bytes::Bytes;
use prometheus_client::{encoding::text::encode, registry::Registry};
use windlass_stage::{
    Addresses, Builder, EndEvent, EndListener, Failure, Settings, Source, Stage, StageMetrics,
};

use crate::pipeline::{RunningStage, bind, wait_until, with_timeout};

const WAVES: usize = 50;
const ITEMS: usize = 40;
const STAGES: [&str; 3] = ["detect", "classify", "track"];
const REPLICAS: usize = 2;

/// A deterministic pseudo-random generator.
struct Numbers(u64);

impl Numbers {
    /// A number below `limit`: the middle bits of Knuth's linear congruential generator.
    fn below(&mut self, limit: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % limit
    }
}

fn address(folder: &Path, stage: usize, replica: usize) -> String {
    format!("unix:{}/{stage}-{replica}", folder.display())
}

fn addresses(folder: &Path, stage: usize) -> Addresses {
    let texts: Vec<_> = (0..REPLICAS).map(|replica| address(folder, stage, replica)).collect();
    texts.join(",").parse().expect("addresses")
}

/// A replica with its metrics.
struct Replica {
    stage: RunningStage,
    metrics: StageMetrics,
}

impl Replica {
    async fn start(folder: &Path, (stage, replica): (usize, usize), store: &Addresses) -> Self {
        let metrics = StageMetrics::new();
        let builder = builder(folder, stage, replica, store).metrics(metrics.clone());
        Self { stage: RunningStage::serve(bind(builder).await), metrics }
    }
}

/// Waits until a stage or a source has open streams to this number of replicas of its next stage.
async fn wait_for_replicas(metrics: &StageMetrics, next: &str, replicas: usize) {
    let mut registry = Registry::default();
    metrics.register(&mut registry);
    let line = format!("windlass_stage_connected_replicas{{next=\"{next}\"}} {replicas}\n");
    let is_connected = || {
        let mut text = String::new();
        encode(&mut text, &registry).expect("text");
        text.contains(&line)
    };
    wait_until(&line, is_connected).await;
}

fn builder(folder: &Path, stage: usize, replica: usize, store: &Addresses) -> Builder {
    let (next, next_addresses) = match STAGES.get(stage + 1) {
        Some(next) => (*next, addresses(folder, stage + 1)),
        None => ("store", store.clone()),
    };
    let work = |payload: Bytes| async move {
        tokio::time::sleep(Duration::from_micros(payload[0].into())).await;
        Ok::<_, std::io::Error>(payload)
    };
    let listen = address(folder, stage, replica).parse().expect("an address");
    Stage::builder(STAGES[stage]).listen(listen).work(work).next(next, next_addresses).workers(2)
}

/// The pipeline of the test. Its last stage runs throughout.
struct Pipeline {
    folder: tempfile::TempDir,
    store: RunningStage,
    replicas: BTreeMap<(usize, usize), Replica>,
    source: Source,
    source_metrics: StageMetrics,
    listener: EndListener,
}

impl Pipeline {
    async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let store = RunningStage::start(crate::pipeline::stage("store")).await;
        let mut replicas = BTreeMap::new();
        for place in (0..STAGES.len()).flat_map(|stage| [(stage, 0), (stage, 1)]) {
            let replica = Replica::start(folder.path(), place, &store.addresses()).await;
            replicas.insert(place, replica);
        }
        let listener = with_timeout(EndListener::listen(store.addresses())).await;
        let source_metrics = StageMetrics::new();
        let detect = addresses(folder.path(), 0);
        let settings = Settings::default();
        let source = Source::connect("camera", STAGES[0], detect, settings, source_metrics.clone());
        Self { folder, store, replicas, source, source_metrics, listener }
    }

    /// Waits until every sender of a stage has streams to this number of its replicas.
    async fn wait_connected(&self, stage: usize, replicas: usize) {
        let sender_stage = stage.checked_sub(1);
        let senders = self.replicas.iter().filter(|(place, _)| Some(place.0) == sender_stage);
        let source = sender_stage.is_none().then_some(&self.source_metrics);
        for metrics in senders.map(|(_, replica)| &replica.metrics).chain(source) {
            wait_for_replicas(metrics, STAGES[stage], replicas).await;
        }
    }

    /// Sends items with these processing times, and calls `stop_replica` after `moment` items have ended. Returns the
    /// failures.
    async fn wave(
        &mut self,
        micros: Vec<u8>,
        moment: usize,
        stop_replica: impl AsyncFnOnce(),
    ) -> Vec<Failure> {
        let Self { source, listener, .. } = self;
        let count = micros.len();
        let sending = async {
            let mut ids = BTreeSet::new();
            for micros in micros {
                ids.insert(with_timeout(source.send(vec![micros].into(), None)).await);
            }
            ids
        };
        let (mut stop_replica, mut failures) = (Some(stop_replica), Vec::new());
        let mut ended_ids = BTreeSet::new();
        let receiving = async {
            while ended_ids.len() < count {
                if ended_ids.len() >= moment
                    && let Some(stop_replica) = stop_replica.take()
                {
                    stop_replica().await;
                }
                let EndEvent::End(end) = with_timeout(listener.next()).await else {
                    panic!("an end was missed")
                };
                failures.extend(end.failure);
                assert!(ended_ids.insert(end.id), "{:x} ended twice", end.id);
            }
        };
        let (ids, ()) = tokio::join!(sending, receiving);
        assert_eq!(ids, ended_ids);
        failures
    }
}

#[tokio::test]
async fn each_item_ends_once_while_stages_are_killed_and_drained() {
    let mut pipeline = Pipeline::start().await;
    let (mut numbers, mut kill_count, mut failure_count) = (Numbers(7), 0, 0);
    for wave in 0..WAVES {
        let place = (numbers.below(STAGES.len()), numbers.below(REPLICAS));
        pipeline.wait_connected(place.0, REPLICAS).await;
        let (moment, is_kill) = (numbers.below(ITEMS), numbers.below(2) == 0);
        let micros = (0..ITEMS).map(|_| u8::try_from(numbers.below(256)).expect("a byte"));
        let stage = pipeline.replicas.remove(&place).expect("all replicas run").stage;
        let stop_replica = async || if is_kill { drop(stage) } else { stage.drain().await };
        let failures = pipeline.wave(micros.collect(), moment, stop_replica).await;
        assert!(is_kill || failures.is_empty(), "wave {wave}, a drain of {place:?}: {failures:?}");
        kill_count += usize::from(is_kill);
        failure_count += failures.len();
        pipeline.wait_connected(place.0, REPLICAS - 1).await;
        let store = pipeline.store.addresses();
        let replica = Replica::start(pipeline.folder.path(), place, &store).await;
        pipeline.replicas.insert(place, replica);
    }
    with_timeout(pipeline.source.finish()).await;
    assert!(
        kill_count > WAVES / 4 && failure_count > 0,
        "{kill_count} kills, {failure_count} failures"
    );
}
