//! Command lines of `windlass pipeline`.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand};
use windlass_pipeline::{
    Layout,
    quantity::{BitRate, Seconds},
};
use windlass_stage::Addresses;

use super::{OutputArg, ViewArgs, stage::duration, word::word};

#[derive(Args, Debug)]
pub(crate) struct PipelineArgs {
    #[command(subcommand)]
    pub(crate) command: PipelineCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PipelineCommand {
    /// Choose the devices and nodes of a pipeline's stages, and predict throughput and latency of each layout.
    Plan(PlanArgs),
    /// Print the manifests of a layout: Deployments, Services, claim templates, disruption budgets.
    Render(RenderArgs),
    /// Put load on a running pipeline: throughput, latency by stage and link, beside the prediction.
    Measure(MeasureArgs),
    /// List the profiles of boards, for `--boards`.
    Boards(BoardsArgs),
    /// Print the JSON schema of the pipeline file, or of a file of boards.
    Schema(PipelineSchemaArgs),
}

/// The nodes on which the pipeline is to run.
#[derive(Args, Debug)]
pub(crate) struct FleetArgs {
    /// File of simulated boards instead of a cluster (docs/edge.md)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["kubeconfig", "from"])]
    pub(crate) boards: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) view: ViewArgs,
    /// Rate of each node's link, which the API server does not know: 100Mbit.
    #[arg(long, value_name = "RATE", default_value = "1Gbit", conflicts_with = "boards")]
    pub(crate) link_rate: BitRate,
    /// Delay between a node and the others' switch: 100us.
    #[arg(long, value_name = "TIME", default_value = "100us", conflicts_with = "boards")]
    pub(crate) link_delay: Seconds,
}

#[derive(Args, Debug)]
#[command(after_help = "\
The file says what each stage can run on, how long an item takes there, and how large items are on each link.
The cluster is looked at as it is: what no pod and no claim holds. docs/edge.md has the format and the model.

Examples:
  windlass pipeline plan doorbell.yaml --boards boards.yaml
  windlass pipeline plan doorbell.yaml --link-rate 100Mbit
  windlass pipeline plan doorbell.yaml --from cluster.json -o json
      a recording, of `windlass cluster record`

Exit codes: 0 every layout has a place, and one meets the goal; 1 otherwise; 64 wrong command line or file.")]
pub(crate) struct PlanArgs {
    /// The pipeline's file: YAML or JSON.
    #[arg(value_name = "FILE")]
    pub(crate) pipeline: PathBuf,
    #[command(flatten)]
    pub(crate) fleet: FleetArgs,
    /// One layout instead of all: planned, pods or pod.
    #[arg(long, value_name = "LAYOUT", value_parser = layout())]
    pub(crate) layout: Option<Layout>,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: OutputArg,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Layouts: pods has a Deployment for each stage, where kube-scheduler puts it; pod has one pod with all stages;
planned puts stages of one node into one pod, and prefers the nodes of the plan.

Examples:
  windlass pipeline render doorbell.yaml | kubectl apply -f -
  windlass pipeline render doorbell.yaml --layout pods --boards boards.yaml >doorbell-pods.yaml")]
pub(crate) struct RenderArgs {
    /// The pipeline's file: YAML or JSON.
    #[arg(value_name = "FILE")]
    pub(crate) pipeline: PathBuf,
    #[command(flatten)]
    pub(crate) fleet: FleetArgs,
    /// Layout: planned, pods or pod.
    #[arg(long, value_name = "LAYOUT", default_value = "planned", value_parser = layout())]
    pub(crate) layout: Layout,
}

#[derive(Args, Debug)]
#[command(after_help = "\
First as many items go in as the pipeline takes, then as many as its file says, or 70 % of those.
It has to run where the stages are reached: in a pod of the pipeline's namespace, or with --first and --end.
With --boards, the layouts run here one after another: stages as processes that wait for the stated times, links with
the boards' rates and delays. With --compare, they run in the cluster one after another, and the pipeline takes no items
in between: not for a pipeline that others need now.

Examples:
  windlass pipeline measure doorbell.yaml --boards boards.yaml
      all layouts on simulated boards, and which to take
  windlass pipeline measure doorbell.yaml --layout planned
      what runs in the cluster, beside the prediction of the layout
  windlass pipeline measure doorbell.yaml --compare --namespace doors
      all layouts in the cluster, one after another, and which to take; it stays there
  windlass pipeline measure doorbell.yaml --trace items.json
  curl -H 'Content-Type: application/json' --data-binary @items.json http://jaeger:4318/v1/traces
      the way of each item, in Jaeger

Exit codes: 0 every item ended; 1 some were not heard of, a layout with a place was not measured, or none meets the
goal; 64 wrong command line or file.")]
pub(crate) struct MeasureArgs {
    /// The pipeline's file: YAML or JSON.
    #[arg(value_name = "FILE")]
    pub(crate) pipeline: PathBuf,
    #[command(flatten)]
    pub(crate) fleet: FleetArgs,
    /// Layout that runs, for the prediction; with --boards, the only one to run.
    #[arg(long, value_name = "LAYOUT", value_parser = layout())]
    pub(crate) layout: Option<Layout>,
    /// Apply each layout to the cluster in turn, measure it from a Job, and leave the best one there. A layout that runs
    /// already is replaced.
    #[arg(long, conflicts_with_all = ["boards", "from", "layout", "first", "end", "trace"])]
    pub(crate) compare: bool,
    /// Namespace of the stages [default: that of the kubeconfig]
    #[arg(long, value_name = "NAMESPACE", requires = "compare")]
    pub(crate) namespace: Option<String>,
    /// Image with windlass for the Job that puts load on the stages [default: that of a stage whose command is windlass]
    #[arg(long, value_name = "IMAGE", requires = "compare")]
    pub(crate) image: Option<String>,
    /// Duration of each of the two runs: 10s.
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = seconds)]
    pub(crate) lasts: Duration,
    /// Addresses of the first stage's replicas [default: its Service]
    #[arg(long, value_name = "ADDRESS,...", conflicts_with = "boards")]
    pub(crate) first: Option<Addresses>,
    /// Addresses of the replicas of a stage where items leave [default: its Service]
    #[arg(long, value_name = "STAGE=ADDRESS,...", value_parser = end, conflicts_with = "boards")]
    pub(crate) end: Vec<(String, Addresses)>,
    /// Write each item's way through the stages to this file, as OTLP in JSON: a collector takes it at /v1/traces
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Draw the mean times at each stage to this file, as SVG.
    #[arg(long, value_name = "FILE")]
    pub(crate) picture: Option<PathBuf>,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: OutputArg,
}

#[derive(Args, Debug)]
pub(crate) struct BoardsArgs {
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: OutputArg,
}

#[derive(Args, Debug)]
pub(crate) struct PipelineSchemaArgs {
    /// The schema of a file of boards.
    #[arg(long)]
    pub(crate) boards: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let lasts = duration(text)?;
    if lasts >= Duration::from_secs(1) {
        Ok(lasts)
    } else {
        Err("measure for at least 1s".to_owned())
    }
}

fn end(text: &str) -> Result<(String, Addresses), String> {
    let (stage, addresses) = text.split_once('=').ok_or("write STAGE=HOST:PORT")?;
    Ok((stage.to_owned(), addresses.parse().map_err(|error| format!("{error}"))?))
}

fn layout() -> impl clap::builder::TypedValueParser<Value = Layout> {
    word([
        (
            Layout::Planned.name(),
            Layout::Planned,
            "each stage where it serves the goal best; stages of one node share a pod",
        ),
        (Layout::Pods.name(), Layout::Pods, "a pod for each stage, where kube-scheduler puts it"),
        (Layout::Pod.name(), Layout::Pod, "one pod with all stages"),
    ])
}
