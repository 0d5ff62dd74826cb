//! The pipeline file: YAML or JSON, strict, with the line of every mistake.

mod alternative;
mod graph;
mod template;

use std::{collections::BTreeMap, path::Path};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use windlass_config::{Diagnostic, Mistakes, document::Spanned};
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
    /// Further fields of the pod's specification, as Kubernetes has them: nodeSelector and tolerations, which the plan
    /// heeds, volumes, imagePullSecrets, serviceAccountName.
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
    /// The stage that sends.
    from: String,
    /// The stage that receives.
    to: String,
}

const PORT: u16 = 7000;
/// More replicas than a large edge cluster has boards.
const MOST_REPLICAS: u32 = 1000;
const MOST_BATCH: u32 = 1024;
/// More items a second than any stage takes.
const MOST_ITEMS: f64 = 1e9;
/// The stage kit's own limit of a payload.
const MOST_OUTPUT: Bytes = Bytes(16 << 20);
/// More stages than one person can follow; the search is tried up to here.
const MOST_STAGES: usize = 200;

/// Mistakes with their lines.
type Found = Vec<Diagnostic>;

/// The JSON schema of the file.
pub fn schema() -> Value {
    schemars::schema_for!(PipelineFile).to_value()
}

/// Reads and checks a file.
fn read(text: &str) -> Result<Pipeline, Found> {
    let mut found = Vec::new();
    let pipeline = document::read::<PipelineFile>(text)?.checked(&mut found);
    if found.is_empty() { Ok(pipeline) } else { Err(found) }
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
            && !(*value > 0.0 && *value <= MOST_ITEMS)
        {
            let text = format!(
                "rate: {value:e}: write items per second, more than 0 and at most {MOST_ITEMS:e}"
            );
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
        if self.output.is_some_and(|output| output > MOST_OUTPUT) {
            let text = format!(
                "output: a stage passes at most {MOST_OUTPUT} on: cut items, or make them smaller"
            );
            found.push(Diagnostic::new(self.name.line, text));
        }
        if self.port == Some(0) {
            found.push(Diagnostic::new(self.name.line, "port: write a number from 1 to 65535"));
        }
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
        template::add(&mut stage, self.pod, self.container, found);
        stage
    }
}

fn check_label(kind: &str, written: &Spanned<String>, found: &mut Found) {
    /// Names of Services are labels: pipeline and stage with a dash between them.
    const LONGEST: usize = 30;
    let Spanned { line, value } = written;
    let begins_well = value.starts_with(|first: char| first.is_ascii_lowercase());
    if !name::is_label(value) || !begins_well || value.len() > LONGEST {
        let text = format!(
            "name: {value:?}: the name of a {kind} has at most {LONGEST} lower-case letters, digits and inner dashes, and \
             begins with a letter"
        );
        found.push(Diagnostic::new(*line, text));
    }
}
