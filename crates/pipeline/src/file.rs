//! The pipeline file: YAML or JSON, strict, with the line of every mistake.

mod graph;

use std::{collections::BTreeMap, path::Path};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use windlass_config::{
    Diagnostic, Mistakes,
    document::{self, Spanned, UnknownKeys},
};
use windlass_core::{name, selector::nearest};

use crate::{
    pipeline::{Alternative, Goal, Pipeline, Stage, Wanted},
    quantity::{Bytes, Seconds},
};

/// A pipeline: stages, what each can run on, and the links between them.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(title = "Pipeline of windlass")]
struct PipelineFile {
    /// Name of the pipeline: a DNS label. Deployments and Services begin with it.
    #[schemars(with = "String")]
    name: Spanned<String>,
    /// The aim of a plan [default: throughput].
    #[schemars(with = "Option<GoalEntry>")]
    goal: Option<Spanned<GoalEntry>>,
    /// Items per second that come. Left out, as many as the pipeline takes.
    #[schemars(with = "Option<f64>")]
    rate: Option<Spanned<f64>>,
    /// Size of an item as it comes to the first stage.
    #[serde(default)]
    input: Bytes,
    /// The stages, in any order.
    #[schemars(with = "Vec<StageEntry>")]
    stages: Vec<Spanned<StageEntry>>,
    /// Links between stages. One stage has no link to it: items come in there.
    #[serde(default)]
    #[schemars(with = "Vec<LinkEntry>")]
    links: Vec<Spanned<LinkEntry>>,
}

/// The aim of a plan.
#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
enum GoalEntry {
    /// The most items per second.
    Throughput,
    /// The least latency at `rate`.
    Latency,
    /// The most items per second with a latency of at most this: `{throughputUnder: 200ms}`.
    ThroughputUnder(Seconds),
}

/// A stage.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StageEntry {
    /// Name: a DNS label.
    #[schemars(with = "String")]
    name: Spanned<String>,
    /// Image of the container; needed for manifests.
    #[serde(default)]
    image: String,
    /// Command of the container; left out, the image's own. Windlass appends where to listen, and what comes next.
    #[serde(default)]
    command: Vec<String>,
    /// Port of the gRPC service [default: 7000].
    port: Option<u16>,
    /// Most replicas [default: 1].
    #[schemars(with = "Option<u32>")]
    replicas: Option<Spanned<u32>>,
    /// Size of a result. A stage with a link needs it: each next stage gets the whole result.
    output: Option<Bytes>,
    /// Most items that a replica works on at once [default: 1].
    #[schemars(with = "Option<u32>")]
    batch: Option<Spanned<u32>>,
    /// Devices that the stage can run on, the preferred one first.
    #[schemars(with = "Vec<AlternativeEntry>")]
    on: Vec<Spanned<AlternativeEntry>>,
}

/// Something that a stage can run on: a resource, a device of a class, or CPUs alone.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AlternativeEntry {
    /// Extended resource, of which a replica takes one: coral.ai/tpu.
    resource: Option<String>,
    /// DeviceClass, of which a replica claims one device.
    device_class: Option<String>,
    /// CEL expression over the claimed device.
    #[serde(rename = "match")]
    #[schemars(with = "Option<String>")]
    expression: Option<Spanned<String>>,
    /// CPUs that a replica requests [default: 1 without a device, 0.1 with one].
    cpus: Option<f64>,
    /// Time of one item, as measured or stated.
    time: Seconds,
    /// Time that each batch takes besides.
    #[serde(default)]
    batch_time: Seconds,
    /// Standard deviation of the time over its mean: 0 for a constant time, 1 for an exponential one.
    #[serde(default)]
    variation: f64,
}

/// A link between two stages.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct LinkEntry {
    /// The stage that sends.
    from: String,
    /// The stage that receives.
    to: String,
}

const PORT: u16 = 7000;
/// More replicas than a large edge cluster has boards.
const MOST_REPLICAS: u32 = 1000;
const MOST_BATCH: u32 = 1024;
/// More stages than one person can follow; the search is tried up to here.
const MOST_STAGES: usize = 200;
/// The time of a stage without a batch is at least this: nothing takes no time.
const SHORTEST: f64 = 1e-6;

/// Mistakes with their lines.
type Found = Vec<Diagnostic>;

/// The JSON schema of the file.
pub fn schema() -> Value {
    schemars::schema_for!(PipelineFile).to_value()
}

/// Reads and checks a file.
fn read(text: &str) -> Result<Pipeline, Found> {
    let root = document::parse(text).map_err(|mistake| vec![mistake])?;
    let reading = document::read::<PipelineFile>(&root, UnknownKeys::Wrong);
    let mut found = reading.mistakes;
    match reading.value {
        Some(file) if found.is_empty() => {
            let pipeline = file.checked(&mut found);
            if found.is_empty() { Ok(pipeline) } else { Err(found) }
        }
        _ => Err(found),
    }
}

// === impl Pipeline ===

impl Pipeline {
    /// Reads a file's text; `path` is for the messages.
    ///
    /// # Errors
    ///
    /// All mistakes of the file, each with its line.
    pub fn parse(path: &Path, text: &str) -> Result<Self, Mistakes> {
        read(text).map_err(|found| Mistakes::new(path, found))
    }
}

// === impl PipelineFile ===

impl PipelineFile {
    fn checked(self, found: &mut Found) -> Pipeline {
        check_label("pipeline", &self.name, found);
        if self.stages.is_empty() {
            found.push(Diagnostic::new(self.name.line, "a pipeline has at least one stage"));
        }
        if self.stages.len() > MOST_STAGES {
            let text = format!("{} stages: at most {MOST_STAGES} are planned", self.stages.len());
            found.push(Diagnostic::new(self.stages[MOST_STAGES].line, text));
        }
        let goal = self.goal(found);
        let mut written = BTreeMap::new();
        for Spanned { value: stage, .. } in &self.stages {
            let Spanned { line, value } = &stage.name;
            if let Some(earlier) = written.insert(value.clone(), *line) {
                let text = format!("stage {value:?} is on line {earlier} too: use two names");
                found.push(Diagnostic::new(*line, text));
            }
        }
        let stages = self.stages.into_iter().map(|stage| stage.value.checked(found)).collect();
        let (stages, links) = graph::ordered(stages, &self.links, &written, found);
        let rate = self.rate.map(|rate| rate.value);
        Pipeline { name: self.name.value, goal, rate, input: self.input, stages, links }
    }

    fn goal(&self, found: &mut Found) -> Goal {
        if let Some(Spanned { line, value }) = &self.rate
            && !(value.is_finite() && *value > 0.0)
        {
            let text = format!("rate: {value}: write items per second, more than 0");
            found.push(Diagnostic::new(*line, text));
        }
        match &self.goal {
            None => Goal::Throughput,
            Some(Spanned { line, value }) => match *value {
                GoalEntry::Throughput => Goal::Throughput,
                GoalEntry::Latency => {
                    if self.rate.is_none() {
                        let text = "goal: latency depends on how many items come: write rate, in items per second";
                        found.push(Diagnostic::new(*line, text));
                    }
                    Goal::Latency
                }
                GoalEntry::ThroughputUnder(limit) => {
                    if limit.0 <= 0.0 {
                        let text = "throughputUnder: write a latency of more than 0";
                        found.push(Diagnostic::new(*line, text));
                    }
                    Goal::ThroughputUnder(limit)
                }
            },
        }
    }
}

// === impl StageEntry ===

impl StageEntry {
    fn checked(self, found: &mut Found) -> Stage {
        check_label("stage", &self.name, found);
        let mut number = |key, value: Option<Spanned<u32>>, most| match value {
            None => 1,
            Some(Spanned { line, value }) => {
                if !(1..=most).contains(&value) {
                    let text = format!("{key}: {value}: write a number from 1 to {most}");
                    found.push(Diagnostic::new(line, text));
                }
                value
            }
        };
        let max_replicas = number("replicas", self.replicas, MOST_REPLICAS);
        let batch = number("batch", self.batch, MOST_BATCH);
        if self.on.is_empty() {
            let text =
                format!("stage {:?} can run on nothing: list devices below on", self.name.value);
            found.push(Diagnostic::new(self.name.line, text));
        }
        let alternatives = self.on.into_iter().map(|entry| entry.value.checked(entry.line, found));
        Stage {
            alternatives: alternatives.collect(),
            name: self.name.value,
            image: self.image,
            command: self.command,
            port: self.port.unwrap_or(PORT),
            max_replicas,
            batch,
            output: self.output,
        }
    }
}

// === impl AlternativeEntry ===

impl AlternativeEntry {
    fn checked(self, line: u64, found: &mut Found) -> Alternative {
        let mut wrong = |line, text: String| found.push(Diagnostic::new(line, text));
        if self.time.0 < SHORTEST {
            let text = format!("time: {}: write how long an item takes, more than 0", self.time);
            wrong(line, text);
        }
        if !(0.0..=10.0).contains(&self.variation) {
            wrong(line, format!("variation: {}: write a number from 0 to 10", self.variation));
        }
        if let Some(cpus) = self.cpus
            && !(cpus > 0.0 && cpus <= 1024.0)
        {
            wrong(line, format!("cpus: {cpus}: write a number of CPUs, more than 0"));
        }
        if let (Some(expression), None) = (&self.expression, &self.device_class) {
            let text = "match selects among the devices of a class: write deviceClass too";
            wrong(expression.line, text.to_owned());
        }
        let usual_cpus =
            if self.resource.is_some() || self.device_class.is_some() { 0.1 } else { 1.0 };
        let device = match (self.resource, self.device_class) {
            (Some(resource), None) => Wanted::Resource(resource),
            (None, None) => Wanted::Cpu,
            (None, Some(class)) => {
                let (line, text) =
                    self.expression.map_or((line, String::new()), |text| (text.line, text.value));
                let parsed = (!text.is_empty()).then(|| text.parse());
                let expression = parsed.and_then(|parsed: Result<_, _>| match parsed {
                    Ok(expression) => Some(expression),
                    Err(error) => {
                        wrong(line, format!("match: {error}"));
                        None
                    }
                });
                Wanted::Claim { class, expression, text }
            }
            (Some(_), Some(_)) => {
                wrong(
                    line,
                    "resource and deviceClass are two ways to one device: write one".to_owned(),
                );
                Wanted::Cpu
            }
        };
        Alternative {
            device,
            cpus: self.cpus.unwrap_or(usual_cpus),
            time: self.time,
            batch_time: self.batch_time,
            variation: self.variation,
        }
    }
}

fn check_label(kind: &str, written: &Spanned<String>, found: &mut Found) {
    /// Names of Services are labels: pipeline and stage with a dash between them.
    const LONGEST: usize = 30;
    let Spanned { line, value } = written;
    if !name::is_label(value) || value.len() > LONGEST {
        let text = format!(
            "name: {value:?}: the name of a {kind} has at most {LONGEST} lower-case letters, digits and inner dashes"
        );
        found.push(Diagnostic::new(*line, text));
    }
}

/// ` (is it NAME?)`, where a name is near.
fn suggestion<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, names).map(|name| format!(" (is it {name:?}?)")).unwrap_or_default()
}
