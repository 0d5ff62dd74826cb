//! The work of a stage: a function from payloads to results, for one item or for a batch.

use std::{any::Any, error::Error, panic::AssertUnwindSafe, pin::Pin, sync::Arc, task::Poll};

use bytes::{Bytes, BytesMut};
use tokio::task::{JoinError, spawn_blocking};

/// An error of the work. Its text becomes the reason of the failure.
pub type WorkError = Box<dyn Error + Send + Sync>;

/// Payloads of one item, one per stage that it came from. Only a join has several.
pub(crate) type Parts = Vec<Bytes>;

/// Outcome of a batch: one per item, or one reason for all.
pub(crate) type Results = Result<Vec<Result<Bytes, WorkError>>, WorkError>;

type Running = Pin<Box<dyn Future<Output = Results> + Send>>;

/// The work of a stage, whatever its form was.
#[derive(Clone)]
pub(crate) struct Work(Arc<dyn Fn(Vec<Parts>) -> Running + Send + Sync>);

// === impl Work ===

impl Work {
    /// Hands each payload on. Parts of a join are put one after the other.
    pub(crate) fn pass_on() -> Self {
        Self(Arc::new(|batch| {
            Box::pin(async { Ok(batch.into_iter().map(together).map(Ok).collect()) })
        }))
    }

    /// Works on the items of a batch one after the other.
    pub(crate) fn each<F, R, E>(work: impl Fn(Parts) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<R, E>> + Send + 'static,
        R: Into<Bytes>,
        E: Into<WorkError>,
    {
        let work = Arc::new(work);
        Self(Arc::new(move |batch| {
            let work = Arc::clone(&work);
            Box::pin(async move {
                let mut results = Vec::with_capacity(batch.len());
                for parts in batch {
                    results.push(work(parts).await.map(Into::into).map_err(Into::into));
                }
                Ok(results)
            })
        }))
    }

    /// Works on a whole batch.
    pub(crate) fn batch<F, E>(work: impl Fn(Vec<Parts>) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Vec<Bytes>, E>> + Send + 'static,
        E: Into<WorkError>,
    {
        Self(Arc::new(move |batch| {
            let running = work(batch);
            Box::pin(async {
                let results = running.await.map_err(Into::into)?;
                Ok(results.into_iter().map(Ok).collect())
            })
        }))
    }

    /// Works on each item on a thread that may block.
    pub(crate) fn blocking<R, E>(
        work: impl Fn(Parts) -> Result<R, E> + Send + Sync + 'static,
    ) -> Self
    where
        R: Into<Bytes>,
        E: Into<WorkError>,
    {
        let work = Arc::new(work);
        Self(Arc::new(move |batch| {
            let work = Arc::clone(&work);
            Box::pin(async move {
                let one = move |parts| work(parts).map(Into::into).map_err(Into::into);
                Ok(Box::pin(on_a_thread(move || batch.into_iter().map(one).collect())).await)
            })
        }))
    }

    /// Runs the work. A panic is an `Err` with its message.
    pub(crate) async fn run(&self, batch: Vec<Parts>) -> Result<Results, String> {
        let begun = std::panic::catch_unwind(AssertUnwindSafe(|| (self.0)(batch)));
        let mut running = begun.map_err(|panic| message(&*panic))?;
        std::future::poll_fn(|cx| {
            match std::panic::catch_unwind(AssertUnwindSafe(|| running.as_mut().poll(cx))) {
                Ok(Poll::Pending) => Poll::Pending,
                Ok(Poll::Ready(results)) => Poll::Ready(Ok(results)),
                Err(panic) => Poll::Ready(Err(message(&*panic))),
            }
        })
        .await
    }
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Work").finish_non_exhaustive()
    }
}

/// One payload of all parts.
pub(crate) fn together(mut parts: Parts) -> Bytes {
    match parts.len() {
        1 => parts.swap_remove(0),
        _ => parts.iter().fold(BytesMut::new(), joined).freeze(),
    }
}

fn joined(mut all: BytesMut, part: &Bytes) -> BytesMut {
    all.extend_from_slice(part);
    all
}

/// Runs a function on a thread that may block; its panic goes on here.
async fn on_a_thread<T: Send + 'static>(function: impl FnOnce() -> T + Send + 'static) -> T {
    match spawn_blocking(function).await.map_err(JoinError::try_into_panic) {
        Ok(value) => value,
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        // The runtime ends, and with it this task.
        Err(Err(_)) => std::future::pending().await,
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}
