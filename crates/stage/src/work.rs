//! The work function of a stage: maps payloads to results, for one item or for a batch.

use std::{any::Any, error::Error, panic::AssertUnwindSafe, pin::Pin, sync::Arc, task::Poll};

use bytes::{Bytes, BytesMut};
use tokio::task::{JoinError, spawn_blocking};

/// Error of a work function. Its text, with its sources, becomes the reason of the failure.
pub type WorkError = Box<dyn Error + Send + Sync>;

/// Payloads of one item, one per sending stage. Only a join has more than one.
pub(crate) type Parts = Vec<Bytes>;

/// Outcome of a batch: one result or error per item, or one error for all items.
pub(crate) type Results = Result<Vec<Result<Bytes, WorkError>>, WorkError>;

type Running = Pin<Box<dyn Future<Output = Results> + Send>>;

/// The work function of a stage in its general form: from a batch to results.
#[derive(Clone)]
pub(crate) struct WorkFunction(Arc<dyn Fn(Vec<Parts>) -> Running + Send + Sync>);

// === impl WorkFunction ===

impl WorkFunction {
    /// Returns each payload unchanged. Parts of a join are concatenated.
    pub(crate) fn forward() -> Self {
        Self(Arc::new(|batch| {
            Box::pin(async { Ok(batch.into_iter().map(concat_parts).map(Ok).collect()) })
        }))
    }

    /// Calls `work` for each item of a batch in turn.
    pub(crate) fn per_item<F, R, E>(work: impl Fn(Parts) -> F + Send + Sync + 'static) -> Self
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

    /// Calls `work` with the whole batch.
    pub(crate) fn per_batch<F, E>(work: impl Fn(Vec<Parts>) -> F + Send + Sync + 'static) -> Self
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

    /// Calls `work` for each item of a batch in turn, on a blocking thread.
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
                let call = move |parts| work(parts).map(Into::into).map_err(Into::into);
                Ok(Box::pin(on_blocking_thread(move || batch.into_iter().map(call).collect()))
                    .await)
            })
        }))
    }

    /// Calls the work function. A panic becomes `Err` with its message.
    pub(crate) async fn run(&self, batch: Vec<Parts>) -> Result<Results, String> {
        let started = std::panic::catch_unwind(AssertUnwindSafe(|| (self.0)(batch)));
        let mut running = started.map_err(|panic| panic_message(&*panic))?;
        std::future::poll_fn(|cx| {
            match std::panic::catch_unwind(AssertUnwindSafe(|| running.as_mut().poll(cx))) {
                Ok(Poll::Pending) => Poll::Pending,
                Ok(Poll::Ready(results)) => Poll::Ready(Ok(results)),
                Err(panic) => Poll::Ready(Err(panic_message(&*panic))),
            }
        })
        .await
    }
}

impl std::fmt::Debug for WorkFunction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkFunction").finish_non_exhaustive()
    }
}

/// Concatenates the parts of an item.
pub(crate) fn concat_parts(mut parts: Parts) -> Bytes {
    match parts.len() {
        1 => parts.swap_remove(0),
        _ => parts.iter().fold(BytesMut::new(), append).freeze(),
    }
}

fn append(mut buffer: BytesMut, part: &Bytes) -> BytesMut {
    buffer.extend_from_slice(part);
    buffer
}

/// Runs a function on a blocking thread, and resumes its panic here.
async fn on_blocking_thread<T: Send + 'static>(function: impl FnOnce() -> T + Send + 'static) -> T {
    match spawn_blocking(function).await.map_err(JoinError::try_into_panic) {
        Ok(value) => value,
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        // The runtime shuts down, and drops this task.
        Err(Err(_)) => std::future::pending().await,
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}
