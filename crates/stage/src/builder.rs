//! Builder of a stage: its name, address, work function and neighbours.

use crate::{
    address::{Address, Addresses},
    metrics::StageMetrics,
    settings::Settings,
    work::{WorkError, WorkFunction},
};
use bytes::Bytes;

/// Entry point to [`Builder`].
#[derive(Debug)]
pub struct Stage;

/// Configuration of a stage. Without a work function the stage returns payloads unchanged.
#[derive(Debug)]
pub struct Builder {
    pub(crate) name: String,
    pub(crate) replica: Option<String>,
    pub(crate) listen: Option<Address>,
    pub(crate) next: Vec<(String, Addresses)>,
    pub(crate) previous: Vec<String>,
    pub(crate) work: WorkFunction,
    pub(crate) settings: Settings,
    pub(crate) metrics: StageMetrics,
}

// === impl Stage ===

impl Stage {
    /// Starts the configuration of a stage with this name.
    pub fn builder(name: &str) -> Builder {
        Builder {
            name: name.to_owned(),
            replica: None,
            listen: None,
            next: Vec::new(),
            previous: Vec::new(),
            work: WorkFunction::forward(),
            settings: Settings::default(),
            metrics: StageMetrics::new(),
        }
    }
}

// === impl Builder ===

impl Builder {
    /// Address to listen on. With port 0 the system chooses a port.
    #[must_use]
    pub fn listen(self, address: Address) -> Self {
        Self { listen: Some(address), ..self }
    }

    /// Name of this process among the stage's replicas. Default: its address.
    #[must_use]
    pub fn replica(self, name: &str) -> Self {
        Self { replica: Some(name.to_owned()), ..self }
    }

    /// Adds a next stage. Each next stage gets a copy of each result.
    #[must_use]
    pub fn next(mut self, stage: &str, addresses: Addresses) -> Self {
        self.next.push((stage.to_owned(), addresses));
        self
    }

    /// Adds a previous stage. With two or more, the stage is a join: it expects a part of each item from each of them,
    /// and its work function gets the parts in the order of these calls.
    #[must_use]
    pub fn previous(mut self, stage: &str) -> Self {
        self.previous.push(stage.to_owned());
        self
    }

    /// Processes one item per call.
    #[must_use]
    pub fn work<F, R, E>(self, work: impl Fn(Bytes) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<R, E>> + Send + 'static,
        R: Into<Bytes>,
        E: Into<WorkError>,
    {
        Self {
            work: WorkFunction::per_item(move |parts| work(crate::work::concat_parts(parts))),
            ..self
        }
    }

    /// Processes one item per call, on a blocking thread.
    #[must_use]
    pub fn blocking<R, E>(
        self,
        work: impl Fn(Bytes) -> Result<R, E> + Send + Sync + 'static,
    ) -> Self
    where
        R: Into<Bytes> + 'static,
        E: Into<WorkError> + Send + 'static,
    {
        Self {
            work: WorkFunction::blocking(move |parts| work(crate::work::concat_parts(parts))),
            ..self
        }
    }

    /// Processes up to `max` items per call. The results must be as many, in the order of the items.
    #[must_use]
    pub fn batch<F, E>(
        mut self,
        max: usize,
        work: impl Fn(Vec<Bytes>) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Vec<Bytes>, E>> + Send + 'static,
        E: Into<WorkError>,
    {
        self.settings.batch = max;
        let payloads = |batch: Vec<_>| batch.into_iter().map(crate::work::concat_parts).collect();
        Self { work: WorkFunction::per_batch(move |batch| work(payloads(batch))), ..self }
    }

    /// Processes the parts of one item per call. The parts are in the order of the calls of [`Builder::previous`].
    #[must_use]
    pub fn join<F, R, E>(self, work: impl Fn(Vec<Bytes>) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<R, E>> + Send + 'static,
        R: Into<Bytes>,
        E: Into<WorkError>,
    {
        Self { work: WorkFunction::per_item(work), ..self }
    }

    /// Number of concurrent calls of the work function: usually one per device.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.settings.workers = workers;
        self
    }

    /// Changes the limits of the stage.
    #[must_use]
    pub fn limits(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(&mut self.settings);
        self
    }

    /// Sets the metrics of the stage. The caller registers them.
    #[must_use]
    pub fn metrics(self, metrics: StageMetrics) -> Self {
        Self { metrics, ..self }
    }
}
