//! Describes a stage: its name, its address, its work and its neighbours.

use crate::{
    address::{Address, Addresses},
    metrics::StageMetrics,
    settings::Settings,
    work::{Work, WorkError},
};
use bytes::Bytes;

/// Entry to [`Builder`].
#[derive(Debug)]
pub struct Stage;

/// A stage that does not serve yet. Without work it passes payloads on.
#[derive(Debug)]
pub struct Builder {
    pub(crate) name: String,
    pub(crate) replica: Option<String>,
    pub(crate) listen: Option<Address>,
    pub(crate) next: Vec<(String, Addresses)>,
    pub(crate) from: Vec<String>,
    pub(crate) work: Work,
    pub(crate) settings: Settings,
    pub(crate) metrics: StageMetrics,
}

// === impl Stage ===

impl Stage {
    /// A stage of this name.
    pub fn builder(name: &str) -> Builder {
        Builder {
            name: name.to_owned(),
            replica: None,
            listen: None,
            next: Vec::new(),
            from: Vec::new(),
            work: Work::pass_on(),
            settings: Settings::default(),
            metrics: StageMetrics::new(),
        }
    }
}

// === impl Builder ===

impl Builder {
    /// Listens here. A port of 0 is chosen by the system.
    #[must_use]
    pub fn listen(self, address: Address) -> Self {
        Self { listen: Some(address), ..self }
    }

    /// Name of this process among the stage's replicas; by default its address.
    #[must_use]
    pub fn replica(self, name: &str) -> Self {
        Self { replica: Some(name.to_owned()), ..self }
    }

    /// Sends a copy of each result to this stage too.
    #[must_use]
    pub fn next(mut self, stage: &str, addresses: Addresses) -> Self {
        self.next.push((stage.to_owned(), addresses));
        self
    }

    /// Expects a part of each item from this stage. Two or more make the stage a join, whose work gets the parts in the
    /// order of these calls.
    #[must_use]
    pub fn from(mut self, stage: &str) -> Self {
        self.from.push(stage.to_owned());
        self
    }

    /// Works on one item at a time.
    #[must_use]
    pub fn work<F, R, E>(self, work: impl Fn(Bytes) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<R, E>> + Send + 'static,
        R: Into<Bytes>,
        E: Into<WorkError>,
    {
        Self { work: Work::each(move |parts| work(crate::work::together(parts))), ..self }
    }

    /// Works on one item at a time, on a thread that may block.
    #[must_use]
    pub fn blocking<R, E>(
        self,
        work: impl Fn(Bytes) -> Result<R, E> + Send + Sync + 'static,
    ) -> Self
    where
        R: Into<Bytes> + 'static,
        E: Into<WorkError> + Send + 'static,
    {
        Self { work: Work::blocking(move |parts| work(crate::work::together(parts))), ..self }
    }

    /// Works on up to `most` items at a time.
    #[must_use]
    pub fn batch<F, E>(
        mut self,
        most: usize,
        work: impl Fn(Vec<Bytes>) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Vec<Bytes>, E>> + Send + 'static,
        E: Into<WorkError>,
    {
        self.settings.batch = most;
        let all = |batch: Vec<_>| batch.into_iter().map(crate::work::together).collect();
        Self { work: Work::batch(move |batch| work(all(batch))), ..self }
    }

    /// Works on the parts of one item at a time, in the order of the calls of [`Builder::from`].
    #[must_use]
    pub fn join<F, R, E>(self, work: impl Fn(Vec<Bytes>) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<R, E>> + Send + 'static,
        R: Into<Bytes>,
        E: Into<WorkError>,
    {
        Self { work: Work::each(work), ..self }
    }

    /// Calls of the work side by side, one per device.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.settings.workers = workers;
        self
    }

    /// Changes limits.
    #[must_use]
    pub fn limits(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(&mut self.settings);
        self
    }

    /// Counts here.
    #[must_use]
    pub fn metrics(self, metrics: StageMetrics) -> Self {
        Self { metrics, ..self }
    }
}
