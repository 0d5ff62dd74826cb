//! One batch: its work, and the way of its results to the next stages.

use std::{fmt::Display, sync::Arc};

use bytes::Bytes;
use tokio::time::{Duration, Instant, sleep};

use crate::{
    exit::Exit,
    failure::{Failure, FailureKind},
    item::{Body, Item, Outgoing},
    metrics::StageMetrics,
    outlet::Outlet,
    queued::Queued,
    settings::{Identity, Settings},
    visit::Visit,
    work::{Parts, Work, WorkError},
};

/// Everything that a batch needs.
pub(crate) struct Workshop {
    pub(crate) identity: Identity,
    pub(crate) settings: Settings,
    pub(crate) work: Work,
    pub(crate) way_out: WayOut,
    pub(crate) metrics: StageMetrics,
}

/// The way of results out of this stage.
pub(crate) enum WayOut {
    /// A copy for each next stage.
    Next(Vec<Outlet>),
    /// The pipeline ends here.
    End(Exit),
}

/// Works on a batch and hands the results on. Failures among the items skip the work.
pub(crate) async fn process(workshop: Arc<Workshop>, mut batch: Vec<Queued>) {
    let begun = Instant::now();
    for item in &mut batch {
        item.place = None;
        if item.parts.is_ok() && item.deadline.is_some_and(|at| at <= begun) {
            item.parts = Err(workshop.failure(FailureKind::Deadline, workshop.late()));
        }
    }
    let inputs: Vec<_> =
        batch.iter_mut().filter_map(|item| item.parts.as_mut().ok()).map(std::mem::take).collect();
    let results = if inputs.is_empty() { Ok(Vec::new()) } else { workshop.work(inputs).await };
    let ready = Instant::now();
    workshop.metrics.batch(begun, ready, &batch);
    let mut results = results.map(Vec::into_iter);
    for mut item in batch {
        let was_worked_on = item.parts.is_ok();
        let body = match std::mem::replace(&mut item.parts, Ok(Vec::new())) {
            Err(failure) => Body::Failure(failure),
            Ok(_) => match results.as_mut().map(Iterator::next) {
                Ok(result) => workshop.body(result.expect("as many results as inputs")),
                Err(failure) => Body::Failure(failure.clone()),
            },
        };
        workshop.metrics.item(&body, was_worked_on);
        let worked = if was_worked_on { ready - begun } else { Duration::ZERO };
        workshop.hand_on(item, body, begun, worked, ready).await;
    }
}

// === impl Workshop ===

impl Workshop {
    /// Results of a batch, as many as inputs, or the failure of all.
    async fn work(&self, inputs: Vec<Parts>) -> Result<Vec<Result<Bytes, WorkError>>, Failure> {
        let count = inputs.len();
        let limit = self.settings.work_timeout;
        let outcome = tokio::select! {
            outcome = self.work.run(inputs) => outcome,
            () = sleep(limit) => {
                let reason = format!("did not answer within {limit:?}");
                return Err(self.failure(FailureKind::Silent, reason));
            }
        };
        match outcome {
            Err(panic) => Err(self.failure(FailureKind::Panic, format!("panicked: {panic}"))),
            Ok(Err(error)) => Err(self.failure(FailureKind::Work, chain(&*error))),
            Ok(Ok(results)) if results.len() != count => {
                let reason = format!("returned {} results for {count} items", results.len());
                Err(self.failure(FailureKind::Count, reason))
            }
            Ok(Ok(results)) => Ok(results),
        }
    }

    fn body(&self, result: Result<Bytes, WorkError>) -> Body {
        match result {
            Ok(payload) => Body::Payload(payload),
            Err(error) => Body::Failure(self.failure(FailureKind::Work, chain(&*error))),
        }
    }

    async fn hand_on(
        &self,
        item: Queued,
        body: Body,
        begun: Instant,
        worked: Duration,
        ready: Instant,
    ) {
        let Queued { id, mut visits, deadline, custodies, arrived, link, .. } = item;
        visits.push(Visit {
            stage: self.identity.stage.to_string(),
            replica: self.identity.replica.to_string(),
            link,
            waited: begun.duration_since(arrived),
            worked,
            sending: Duration::ZERO,
        });
        let from = self.identity.stage.to_string();
        let item = Item { id, from, body, visits, deadline };
        match &self.way_out {
            WayOut::End(exit) => exit.end(item, &custodies),
            WayOut::Next(outlets) => {
                let (last, others) = outlets.split_last().expect("a next stage, or the end");
                for outlet in others {
                    let (item, custodies) = (item.clone(), custodies.clone());
                    outlet.send(Outgoing { item, custodies, ready }).await;
                }
                last.send(Outgoing { item, custodies, ready }).await;
            }
        }
    }

    fn failure(&self, kind: FailureKind, reason: String) -> Failure {
        self.metrics.failure(kind);
        self.identity.failure(kind, reason)
    }

    fn late(&self) -> String {
        format!("deadline passed in the queue of {}", self.identity.stage)
    }
}

/// An error with its causes.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let texts: Vec<_> = causes.map(|cause| (cause as &dyn Display).to_string()).collect();
    texts.join(": ")
}
