//! Command lines of `windlass pipeline`.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand};
use windlass_pipeline::{
    Layout,
    quantity::{BitRate, Seconds},
};
use windlass_stage::Addresses;

use super::{OutputArg, ViewArgs, stage::duration, word::enum_parser};

#[derive(Args, Debug)]
pub(crate) struct PipelineArgs {
    #[command(subcommand)]
    pub(crate) command: PipelineCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PipelineCommand {
    /// Choose devices and nodes for a pipeline's stages, and predict throughput and latency of each layout.
    Plan(PlanArgs),
    /// Print the manifests of a layout: Deployments, Services, claim templates, disruption budgets.
    Render(RenderArgs),
    /// Measure a running pipeline under load: throughput, latency by stage and link, compared with the prediction.
    Measure(MeasureArgs),
    /// List the profiles of boards, for `--boards`.
    Boards(BoardsArgs),
    /// Print the JSON schema of the pipeline file, or of a file of boards.
    Schema(PipelineSchemaArgs),
}

/// Nodes for the pipeline: simulated boards, a cluster, or a recording of one.
#[derive(Args, Debug)]
pub(crate) struct FleetArgs {
    /// File of simulated boards instead of a cluster (docs/edge.md)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["kubeconfig", "from"])]
    pub(crate) boards: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) view: ViewArgs,
    /// Bandwidth of each node's network link, which the API server does not report: 100Mbit.
    #[arg(long, value_name = "RATE", default_value = "1Gbit", conflicts_with = "boards")]
    pub(crate) link_rate: BitRate,
    /// Delay between a node and the switch that connects the nodes: 100us.
    #[arg(long, value_name = "TIME", default_value = "100us", conflicts_with = "boards")]
    pub(crate) link_delay: Seconds,
}

#[derive(Args, Debug)]
#[command(after_help = "\
The file lists the devices that each stage can use, the time per item on each, and the size of items on each link.
The plan uses devices of the cluster that no pod and no claim holds. docs/edge.md has the format and the model.

Examples:
  windlass pipeline plan doorbell.yaml --boards boards.yaml
  windlass pipeline plan doorbell.yaml --link-rate 100Mbit
  windlass pipeline plan doorbell.yaml --from cluster.json -o json
      a recording from `windlass cluster record`

Exit codes: 0 every layout fits, and one meets the goal; 1 otherwise; 64 wrong command line or file.")]
pub(crate) struct PlanArgs {
    /// Pipeline file: YAML or JSON.
    #[arg(value_name = "FILE")]
    pub(crate) pipeline: PathBuf,
    #[command(flatten)]
    pub(crate) fleet: FleetArgs,
    /// Plan one layout instead of all: planned, pods or pod.
    #[arg(long, value_name = "LAYOUT", value_parser = layout())]
    pub(crate) layout: Option<Layout>,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: OutputArg,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Layouts:
  planned  one pod for linked stages on one node, with a preference for the node of the plan
  pods     a Deployment for each stage; kube-scheduler chooses the nodes
  pod      one pod with all stages

Examples:
  windlass pipeline render doorbell.yaml | kubectl apply -f -
  windlass pipeline render doorbell.yaml --layout pods --boards boards.yaml >doorbell-pods.yaml")]
pub(crate) struct RenderArgs {
    /// Pipeline file: YAML or JSON.
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
There are two runs. The first sends items as fast as the pipeline accepts them; the second sends them at the
file's rate if the first run exceeds that rate, or else at 70 % of the first run's throughput.
The command must reach the stages: run it in a pod of the pipeline's namespace, or give their addresses with --first and
--end.
With --boards, the layouts run on this machine one after another. Stages are processes that wait for the times in the
file, and links have the boards' rates and delays.
With --compare, the layouts run in the cluster one after another. The pipeline accepts no items in between, so do not
use it for a pipeline in production.

Examples:
  windlass pipeline measure doorbell.yaml --boards boards.yaml
      all layouts on simulated boards, and the best one
  windlass pipeline measure doorbell.yaml --layout planned
      the pipeline that runs in the cluster, compared with the prediction of the layout
  windlass pipeline measure doorbell.yaml --compare --namespace doors
      all layouts in the cluster, one after another; the best one stays there
  windlass pipeline measure doorbell.yaml --trace items.json
  curl -H 'Content-Type: application/json' --data-binary @items.json http://jaeger:4318/v1/traces
      a trace of each item, in Jaeger

Exit codes: 0 every item ended; 1 the outcome of an item is unknown, a layout that fits was not measured, or no layout
meets the goal; 64 wrong command line or file.")]
pub(crate) struct MeasureArgs {
    /// Pipeline file: YAML or JSON.
    #[arg(value_name = "FILE")]
    pub(crate) pipeline: PathBuf,
    #[command(flatten)]
    pub(crate) fleet: FleetArgs,
    /// Layout of the running pipeline, for the prediction; with --boards, the only layout to run.
    #[arg(long, value_name = "LAYOUT", value_parser = layout())]
    pub(crate) layout: Option<Layout>,
    /// Apply each layout to the cluster in turn, measure it from a Job, and keep the best one. This replaces a layout
    /// that already runs.
    #[arg(long, conflicts_with_all = ["boards", "from", "layout", "first", "end", "trace"])]
    pub(crate) compare: bool,
    /// Namespace of the stages [default: the namespace of the kubeconfig]
    #[arg(long, value_name = "NAMESPACE", requires = "compare")]
    pub(crate) namespace: Option<String>,
    /// Image with windlass for the Job that sends items [default: the image of a stage whose command is windlass]
    #[arg(long, value_name = "IMAGE", requires = "compare")]
    pub(crate) image: Option<String>,
    /// Duration of each of the two runs, at least 1s.
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = seconds)]
    pub(crate) duration: Duration,
    /// Addresses of the first stage's replicas [default: its Service]
    #[arg(long, value_name = "ADDRESS,...", conflicts_with = "boards")]
    pub(crate) first: Option<Addresses>,
    /// Addresses of the replicas of a last stage [default: its Service]
    #[arg(long, value_name = "STAGE=ADDRESS,...", value_parser = end, conflicts_with = "boards")]
    pub(crate) end: Vec<(String, Addresses)>,
    /// Write a trace of each item to this file, as OTLP in JSON, which a collector accepts at /v1/traces
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Draw the mean times at each stage to this SVG file.
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
    /// Print the schema of a file of boards instead.
    #[arg(long)]
    pub(crate) boards: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let duration = duration(text)?;
    if duration >= Duration::from_secs(1) {
        Ok(duration)
    } else {
        Err("measure for at least 1s".to_owned())
    }
}

fn end(text: &str) -> Result<(String, Addresses), String> {
    let (stage, addresses) = text.split_once('=').ok_or("write STAGE=HOST:PORT")?;
    Ok((stage.to_owned(), addresses.parse().map_err(|error| format!("{error}"))?))
}

fn layout() -> impl clap::builder::TypedValueParser<Value = Layout> {
    enum_parser([
        (
            Layout::Planned.name(),
            Layout::Planned,
            "each stage on the best node for the goal; linked stages on one node share a pod",
        ),
        (
            Layout::Pods.name(),
            Layout::Pods,
            "a pod for each stage, on a node that kube-scheduler chooses",
        ),
        (Layout::Pod.name(), Layout::Pod, "one pod with all stages"),
    ])
}
