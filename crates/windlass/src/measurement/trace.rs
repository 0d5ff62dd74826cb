//! Traces of items as OTLP in JSON, which Jaeger, Tempo and the OpenTelemetry collector accept at `/v1/traces`.
//!
//! Each item has a trace: a root span from its send to its end, with a child span for each stage. A stage's span has
//! children for the wait in the queue, the work, and the wait for room at the next stage. The time on a link is the gap
//! between the spans of two stages. The clocks of nodes differ, so times are sums of the durations that the stages
//! measured, from the source's clock on.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use windlass_pipeline::Pipeline;
use windlass_stage::{Failure, Visit};

use super::load::LoadRun;

/// Spans of a measurement, by stage and replica.
#[derive(Debug, Default)]
pub(crate) struct Traces {
    spans: BTreeMap<(String, String), Vec<Value>>,
}

/// A trace that is being written.
struct Trace<'t> {
    traces: &'t mut Traces,
    id: String,
    spans: u64,
}

/// Span of an item.
struct Span<'a> {
    /// Names of service and replica.
    service: (&'a str, &'a str),
    name: &'a str,
    parent: Option<u64>,
    from: SystemTime,
    to: SystemTime,
    failure: Option<&'a Failure>,
}

/// Span kinds of OTLP.
const SPAN_KIND_INTERNAL: u8 = 1;
const SPAN_KIND_CONSUMER: u8 = 5;
/// Status code of OTLP.
const STATUS_CODE_ERROR: u8 = 2;
/// Service name of the load's source.
const SOURCE: &str = "source";

// === impl Traces ===

impl Traces {
    /// Adds the items of a run. `title` names the run in the spans.
    pub(crate) fn add(&mut self, pipeline: &Pipeline, run: &LoadRun, title: &str) {
        let run_start = run.started;
        let arrived = run.arrived.iter().map(|item| (item.id, item.due, &item.visits, None));
        let failed =
            run.failures.iter().map(|item| (item.id, item.due, &item.visits, Some(&item.failure)));
        for (id, due, visits, failure) in arrived.chain(failed) {
            // Ids of items are unique in a run, and runs begin at different times.
            let id = format!("{:016x}{id:016x}", nanos(run_start));
            let mut trace = Trace { traces: self, id, spans: 0 };
            trace.write_item(pipeline, run_start + due, visits, failure, title);
        }
    }

    /// Writes the spans to a file.
    pub(crate) fn write(&self, pipeline: &Pipeline, path: &Path) -> Result<()> {
        let resources = self.spans.iter().map(|((service, replica), spans)| {
            let attributes = [
                attribute("service.name", service),
                attribute("service.namespace", &pipeline.name),
                attribute("service.instance.id", replica),
            ];
            json!({
                "resource": { "attributes": attributes },
                "scopeSpans": [{ "scope": { "name": "windlass" }, "spans": spans }],
            })
        });
        let document = json!({ "resourceSpans": resources.collect::<Vec<_>>() });
        fs::write(path, document.to_string())
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

// === impl Trace ===

impl Trace<'_> {
    fn write_item(
        &mut self,
        pipeline: &Pipeline,
        due: SystemTime,
        visits: &[Visit],
        failure: Option<&Failure>,
        title: &str,
    ) {
        // The root span has the first id, and is written last: its end is the latest of all.
        self.spans = 1;
        let mut stage_ends: BTreeMap<&str, SystemTime> = BTreeMap::new();
        for (position, stage) in pipeline.stages.iter().enumerate() {
            let Some(visit) = visits.iter().find(|visit| visit.stage == stage.name) else {
                continue;
            };
            let sender_names =
                pipeline.links_to(position).map(|link| &*pipeline.stages[link.from].name);
            let senders: Vec<_> =
                sender_names.filter_map(|name| stage_ends.get(name).copied()).collect();
            // The span of a join begins when its first sender is done. The measured link time is that of the last
            // sender.
            let link = if senders.len() > 1 { Duration::ZERO } else { visit.link };
            let send_time = senders.into_iter().min().unwrap_or(due);
            let failure = failure.filter(|failure| failure.stage == stage.name);
            let end = self.write_visit(visit, send_time + link, failure);
            stage_ends.insert(&stage.name, end);
        }
        let to = stage_ends.into_values().max().unwrap_or(due);
        let name = format!("item of {title}");
        let service = (SOURCE, pipeline.name.as_str());
        self.write_span(1, &Span { service, name: &name, parent: None, from: due, to, failure });
    }

    /// Writes the spans of a visit, and returns its end.
    fn write_visit(
        &mut self,
        visit: &Visit,
        from: SystemTime,
        failure: Option<&Failure>,
    ) -> SystemTime {
        let service = (visit.stage.as_str(), visit.replica.as_str());
        let to = from + visit.queueing + visit.processing + visit.sending;
        let stage = self.next_id();
        self.write_span(
            stage,
            &Span { service, name: &visit.stage, parent: Some(1), from, to, failure },
        );
        let mut start = from;
        for (name, time) in [
            ("queue", visit.queueing),
            ("work", visit.processing),
            ("room at the next", visit.sending),
        ] {
            if time > Duration::ZERO {
                let child = self.next_id();
                let parent = Some(stage);
                self.write_span(
                    child,
                    &Span { service, name, parent, from: start, to: start + time, failure: None },
                );
            }
            start += time;
        }
        to
    }

    fn next_id(&mut self) -> u64 {
        self.spans += 1;
        self.spans
    }

    fn write_span(&mut self, id: u64, span: &Span<'_>) {
        let mut document = json!({
            "traceId": self.id,
            "spanId": format!("{id:016x}"),
            "name": span.name,
            "kind": if span.parent == Some(1) { SPAN_KIND_CONSUMER } else { SPAN_KIND_INTERNAL },
            "startTimeUnixNano": nanos(span.from).to_string(),
            "endTimeUnixNano": nanos(span.to).to_string(),
        });
        if let Some(parent) = span.parent {
            document["parentSpanId"] = format!("{parent:016x}").into();
        }
        if let Some(failure) = span.failure {
            document["status"] =
                json!({ "code": STATUS_CODE_ERROR, "message": failure.to_string() });
        }
        let (service, replica) = span.service;
        let key = (service.to_owned(), replica.to_owned());
        self.traces.spans.entry(key).or_default().push(document);
    }
}

fn attribute(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

/// Nanoseconds since the Unix epoch.
fn nanos(time: SystemTime) -> u128 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos()
}
