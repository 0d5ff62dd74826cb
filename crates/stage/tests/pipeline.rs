//! Fixtures: stages on loopback ports that a test can kill, drain and restart.

use std::{collections::BTreeMap, error::Error, time::Duration};

use bytes::Bytes;
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use windlass_stage::{
    Address, Addresses, BoundStage, Builder, End, EndEvent, EndListener, ServeError, Settings,
    Source, Stage, StageMetrics,
};

/// Timeout of every wait in a test.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// A stage in this process. Dropping it kills it.
pub(crate) struct RunningStage {
    pub(crate) address: Address,
    shutdown: CancellationToken,
    task: Option<JoinHandle<Result<(), ServeError>>>,
}

impl RunningStage {
    pub(crate) async fn start(builder: Builder) -> Self {
        Self::serve(bind(builder).await)
    }

    pub(crate) fn serve(bound_stage: BoundStage) -> Self {
        let (address, shutdown) = (bound_stage.address().clone(), CancellationToken::new());
        let token = shutdown.clone();
        #[expect(clippy::disallowed_methods, reason = "aborted on drop")]
        let task = tokio::spawn(async move { bound_stage.serve(token).await });
        Self { address, shutdown, task: Some(task) }
    }

    pub(crate) fn addresses(&self) -> Addresses {
        self.address.clone().into()
    }

    /// Shuts down gracefully, as a deleted pod does.
    pub(crate) async fn drain(mut self) {
        self.shutdown.cancel();
        let task = self.task.take().expect("the stage runs");
        with_timeout(task).await.expect("no panic").expect("served");
    }
}

impl Drop for RunningStage {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// A loopback address with a port that the system chooses.
pub(crate) fn any_port_address() -> Address {
    "127.0.0.1:0".parse().expect("an address")
}

pub(crate) fn stage(name: &str) -> Builder {
    Stage::builder(name).listen(any_port_address())
}

pub(crate) async fn bind(builder: Builder) -> BoundStage {
    builder.bind().await.expect("a free address")
}

pub(crate) fn source(first: &str, addresses: impl Into<Addresses>) -> Source {
    Source::connect("camera", first, addresses, Settings::default(), StageMetrics::new())
}

pub(crate) async fn with_timeout<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(TIMEOUT, future).await.expect("the wait timed out")
}

/// Waits until a condition holds.
pub(crate) async fn wait_until(expected: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < TIMEOUT, "not in time: {expected}");
        sleep(Duration::from_millis(2)).await;
    }
}

/// Receives the ends of `count` items. Panics if an id ends twice.
pub(crate) async fn receive_ends(listener: &mut EndListener, count: usize) -> BTreeMap<u64, End> {
    let mut ends = BTreeMap::new();
    while ends.len() < count {
        match with_timeout(listener.next()).await {
            EndEvent::End(end) => {
                let id = end.id;
                assert!(ends.insert(id, end).is_none(), "{id:x} ended twice");
            }
            EndEvent::Missed(count) => panic!("{count} ends were missed"),
        }
    }
    ends
}

/// Adds a letter to the payload.
pub(crate) fn append_letter(
    letter: u8,
) -> impl Fn(Bytes) -> std::future::Ready<Result<Bytes, Box<dyn Error + Send + Sync>>> {
    move |payload| std::future::ready(Ok([&payload[..], &[letter]].concat().into()))
}
