//! The pipeline file: YAML or JSON, parsed strictly. Every error has its line.

mod alternative;
mod graph;
mod template;

use std::{collections::BTreeMap, path::Path};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use windlass_config::{Diagnostic, InvalidConfig, document::Spanned};
use windlass_core::name;

use alternative::AlternativeEntry;

use crate::{
    document,
    pipeline::{Goal, Pipeline, Stage},
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
    /// Objective of the plan [default: throughput].
    #[schemars(with = "Option<GoalEntry>")]
    goal: Option<Spanned<GoalEntry>>,
    /// Arrival rate in items per second. Without it, latencies hold at 70 % of the throughput.
    #[schemars(with = "Option<f64>")]
    rate: Option<Spanned<f64>>,
    /// Size of an item at the first stage.
    #[serde(default)]
    input: Bytes,
    /// The stages, in any order.
    #[schemars(with = "Vec<StageEntry>")]
    stages: Vec<Spanned<StageEntry>>,
    /// Links between stages. Exactly one stage has no incoming link: the first one.
    #[serde(default)]
    #[schemars(with = "Vec<LinkEntry>")]
    links: Vec<Spanned<LinkEntry>>,
}

/// Objective of the plan.
#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
enum GoalEntry {
    /// Maximum items per second.
    Throughput,
    /// Minimum latency at `rate`.
    Latency,
    /// Maximum items per second while the latency is at most this value: `{throughputUnder: 200ms}`.
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
    /// Command of the container [default: the image's entrypoint]. Windlass appends `--listen`, `--next` and the like.
    #[serde(default)]
    command: Vec<String>,
    /// Port of the gRPC service [default: 7000].
    port: Option<u16>,
    /// Maximum number of replicas [default: 1].
    #[schemars(with = "Option<u32>")]
    replicas: Option<Spanned<u32>>,
    /// Size of a result; required with outgoing links. Each next stage receives the whole result.
    output: Option<Bytes>,
    /// Maximum number of items that a replica processes in one batch [default: 1].
    #[schemars(with = "Option<u32>")]
    batch: Option<Spanned<u32>>,
    /// Devices that the stage can run on, the preferred one first.
    #[schemars(with = "Vec<AlternativeEntry>")]
    on: Vec<Spanned<AlternativeEntry>>,
    /// Further fields of the Kubernetes pod specification: nodeSelector and tolerations, which the plan respects,
    /// volumes, imagePullSecrets, serviceAccountName.
    #[schemars(with = "Option<Map<String, Value>>")]
    pod: template::Fields,
    /// Further fields of the container: env, volumeMounts, securityContext.
    #[schemars(with = "Option<Map<String, Value>>")]
    container: template::Fields,
}

/// A link between two stages.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct LinkEntry {
    /// Name of the sending stage.
    from: String,
    /// Name of the receiving stage.
    to: String,
}

const PORT: u16 = 7000;
/// Upper limit: a large edge cluster has fewer boards.
const MAX_REPLICAS: u32 = 1000;
const MAX_BATCH: u32 = 1024;
/// Upper limit of the rate: no stage processes more items per second.
const MAX_ITEMS: f64 = 1e9;
/// The stage kit's limit of a payload.
const MAX_OUTPUT: Bytes = Bytes(16 << 20);
/// Upper limit: the benchmark of the search goes up to this number of stages.
const MAX_STAGES: usize = 200;

/// Errors of a file, each with its line.
type Diagnostics = Vec<Diagnostic>;

/// JSON schema of the pipeline file.
pub fn schema() -> Value {
    schemars::schema_for!(PipelineFile).to_value()
}

/// Parses and validates the text of a file.
fn read(text: &str) -> Result<Pipeline, Diagnostics> {
    let mut errors = Vec::new();
    let pipeline = document::read::<PipelineFile>(text)?.validate(&mut errors);
    if errors.is_empty() { Ok(pipeline) } else { Err(errors) }
}

// === impl Pipeline ===

impl Pipeline {
    /// Parses the text of a pipeline file. Error messages name `path`.
    ///
    /// # Errors
    ///
    /// All errors of the file, each with its line.
    pub fn parse(path: &Path, text: &str) -> Result<Self, InvalidConfig> {
        read(text).map_err(|errors| InvalidConfig::new(path, errors))
    }
}

// === impl PipelineFile ===

impl PipelineFile {
    fn validate(self, errors: &mut Diagnostics) -> Pipeline {
        check_label("pipeline", &self.name, errors);
        if self.stages.is_empty() {
            errors.push(Diagnostic::new(self.name.line, "a pipeline has at least one stage"));
        }
        if self.stages.len() > MAX_STAGES {
            let text = format!("{} stages: a pipeline has at most {MAX_STAGES}", self.stages.len());
            errors.push(Diagnostic::new(self.stages[MAX_STAGES].line, text));
        }
        let goal = self.goal(errors);
        let mut name_lines = BTreeMap::new();
        for Spanned { value: stage, .. } in &self.stages {
            let Spanned { line, value } = &stage.name;
            if let Some(earlier_line) = name_lines.insert(value.clone(), *line) {
                let text = format!(
                    "stage {value:?} is defined on line {earlier_line} too: use different names"
                );
                errors.push(Diagnostic::new(*line, text));
            }
        }
        let stages = self.stages.into_iter().map(|stage| stage.value.validate(errors)).collect();
        let (stages, links) = graph::sorted(stages, &self.links, &name_lines, errors);
        let rate = self.rate.map(|rate| rate.value);
        Pipeline { name: self.name.value, goal, rate, input: self.input, stages, links }
    }

    fn goal(&self, errors: &mut Diagnostics) -> Goal {
        if let Some(Spanned { line, value }) = &self.rate
            && !(*value > 0.0 && *value <= MAX_ITEMS)
        {
            let text = format!(
                "rate: {value:e}: write items per second, more than 0 and at most {MAX_ITEMS:e}"
            );
            errors.push(Diagnostic::new(*line, text));
        }
        match &self.goal {
            None => Goal::Throughput,
            Some(Spanned { line, value }) => match *value {
                GoalEntry::Throughput => Goal::Throughput,
                GoalEntry::Latency => {
                    if self.rate.is_none() {
                        let text = "goal: latency depends on the arrival rate: write rate, in items per second";
                        errors.push(Diagnostic::new(*line, text));
                    }
                    Goal::Latency
                }
                GoalEntry::ThroughputUnder(limit) => {
                    if limit.0 <= 0.0 {
                        let text = "throughputUnder: write a latency of more than 0";
                        errors.push(Diagnostic::new(*line, text));
                    }
                    Goal::ThroughputUnder(limit)
                }
            },
        }
    }
}

// === impl StageEntry ===

impl StageEntry {
    fn validate(self, errors: &mut Diagnostics) -> Stage {
        check_label("stage", &self.name, errors);
        if self.output.is_some_and(|output| output > MAX_OUTPUT) {
            let text = format!(
                "output: a result has at most {MAX_OUTPUT}: split items, or make them smaller"
            );
            errors.push(Diagnostic::new(self.name.line, text));
        }
        if self.port == Some(0) {
            errors.push(Diagnostic::new(self.name.line, "port: write a number from 1 to 65535"));
        }
        let mut number = |key, value: Option<Spanned<u32>>, max| match value {
            None => 1,
            Some(Spanned { line, value }) => {
                if !(1..=max).contains(&value) {
                    let text = format!("{key}: {value}: write a number from 1 to {max}");
                    errors.push(Diagnostic::new(line, text));
                }
                value
            }
        };
        let max_replicas = number("replicas", self.replicas, MAX_REPLICAS);
        let batch = number("batch", self.batch, MAX_BATCH);
        if self.on.is_empty() {
            let text = format!(
                "stage {:?} has no alternatives: list devices or CPUs under `on`",
                self.name.value
            );
            errors.push(Diagnostic::new(self.name.line, text));
        }
        let alternatives =
            self.on.into_iter().map(|entry| entry.value.validate(entry.line, errors));
        let mut stage = Stage {
            alternatives: alternatives.collect(),
            name: self.name.value,
            image: self.image,
            command: self.command,
            port: self.port.unwrap_or(PORT),
            max_replicas,
            batch,
            output: self.output,
            node_selector: BTreeMap::new(),
            tolerations: Vec::new(),
            pod: Map::new(),
            container: Map::new(),
        };
        template::add(&mut stage, self.pod, self.container, errors);
        stage
    }
}

fn check_label(kind: &str, label: &Spanned<String>, errors: &mut Diagnostics) {
    /// A Service is named `PIPELINE-STAGE`, and a DNS label has at most 63 characters.
    const MAX_LENGTH: usize = 30;
    let Spanned { line, value } = label;
    let begins_with_letter = value.starts_with(|first: char| first.is_ascii_lowercase());
    if !name::is_label(value) || !begins_with_letter || value.len() > MAX_LENGTH {
        let text = format!(
            "name: {value:?}: the name of a {kind} has at most {MAX_LENGTH} lower-case letters, digits and inner dashes, and \
             begins with a letter"
        );
        errors.push(Diagnostic::new(*line, text));
    }
}
