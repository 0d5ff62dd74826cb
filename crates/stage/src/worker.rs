//! Processing of one batch: calls the work function and sends the results on.

use std::{fmt::Display, sync::Arc};

use bytes::Bytes;
use tokio::time::{Duration, Instant, sleep};

use crate::{
    exit::EndSender,
    failure::{Failure, FailureKind},
    item::{Body, Item, Outgoing},
    metrics::StageMetrics,
    outlet::Outlet,
    queued::Queued,
    settings::{Identity, Settings},
    visit::Visit,
    work::{Parts, WorkError, WorkFunction},
};

/// Shared context of all batches of a stage.
pub(crate) struct BatchContext {
    pub(crate) identity: Identity,
    pub(crate) settings: Settings,
    pub(crate) work: WorkFunction,
    pub(crate) destination: Destination,
    pub(crate) metrics: StageMetrics,
}

/// Destination of the results.
pub(crate) enum Destination {
    /// Every next stage gets a copy.
    Next(Vec<Outlet>),
    /// The stage is the last one.
    End(EndSender),
}

/// Processes a batch and sends the results on. Failed items skip the work function.
pub(crate) async fn process(context: Arc<BatchContext>, mut batch: Vec<Queued>) {
    let started = Instant::now();
    for item in &mut batch {
        item.slot = None;
        if item.parts.is_ok() && item.deadline.is_some_and(|at| at <= started) {
            item.parts = Err(context.failure(FailureKind::Deadline, context.deadline_reason()));
        }
    }
    let inputs: Vec<_> =
        batch.iter_mut().filter_map(|item| item.parts.as_mut().ok()).map(std::mem::take).collect();
    let results = if inputs.is_empty() { Ok(Vec::new()) } else { context.work(inputs).await };
    let ready = Instant::now();
    context.metrics.record_batch(started, ready, &batch);
    let mut results = results.map(Vec::into_iter);
    for mut item in batch {
        let was_processed = item.parts.is_ok();
        let body = match std::mem::replace(&mut item.parts, Ok(Vec::new())) {
            Err(failure) => Body::Failure(failure),
            Ok(_) => match results.as_mut().map(Iterator::next) {
                Ok(result) => context.body(result.expect("`work` checked the number of results")),
                Err(failure) => Body::Failure(failure.clone()),
            },
        };
        context.metrics.count_item(&body, was_processed);
        let processing = if was_processed { ready - started } else { Duration::ZERO };
        context.send_result(item, body, started, processing, ready).await;
    }
}

// === impl BatchContext ===

impl BatchContext {
    /// Calls the work function. Returns one result per input, or one failure for all.
    async fn work(&self, inputs: Vec<Parts>) -> Result<Vec<Result<Bytes, WorkError>>, Failure> {
        let count = inputs.len();
        let limit = self.settings.work_timeout;
        let outcome = tokio::select! {
            outcome = self.work.run(inputs) => outcome,
            () = sleep(limit) => {
                let reason = format!("did not answer within {limit:?}");
                return Err(self.failure(FailureKind::WorkTimeout, reason));
            }
        };
        match outcome {
            Err(panic) => Err(self.failure(FailureKind::Panic, format!("panicked: {panic}"))),
            Ok(Err(error)) => Err(self.failure(FailureKind::Work, error_chain(&*error))),
            Ok(Ok(results)) if results.len() != count => {
                let reason = format!("returned {} results for {count} items", results.len());
                Err(self.failure(FailureKind::WrongResultCount, reason))
            }
            Ok(Ok(results)) => Ok(results),
        }
    }

    fn body(&self, result: Result<Bytes, WorkError>) -> Body {
        match result {
            Ok(payload) => Body::Payload(payload),
            Err(error) => Body::Failure(self.failure(FailureKind::Work, error_chain(&*error))),
        }
    }

    async fn send_result(
        &self,
        item: Queued,
        body: Body,
        started: Instant,
        processing: Duration,
        ready: Instant,
    ) {
        let Queued { id, mut visits, deadline, custodies, arrived, link, .. } = item;
        visits.push(Visit {
            stage: self.identity.stage.to_string(),
            replica: self.identity.replica.to_string(),
            link,
            queueing: started.duration_since(arrived),
            processing,
            sending: Duration::ZERO,
        });
        let sender = self.identity.stage.to_string();
        let item = Item { id, sender, body, visits, deadline };
        match &self.destination {
            Destination::End(ends) => ends.send(item, &custodies),
            Destination::Next(outlets) => {
                let (last, others) =
                    outlets.split_last().expect("`Destination::Next` has at least one outlet");
                for outlet in others {
                    let (item, custodies) = (item.clone(), custodies.clone());
                    outlet.send(Outgoing { item, custodies, ready }).await;
                }
                last.send(Outgoing { item, custodies, ready }).await;
            }
        }
    }

    fn failure(&self, kind: FailureKind, reason: String) -> Failure {
        self.metrics.count_failure(kind);
        self.identity.failure(kind, reason)
    }

    fn deadline_reason(&self) -> String {
        format!("deadline passed in the queue of {}", self.identity.stage)
    }
}

/// Text of an error and its sources, separated by colons.
fn error_chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let texts: Vec<_> = causes.map(|cause| (cause as &dyn Display).to_string()).collect();
    texts.join(": ")
}
