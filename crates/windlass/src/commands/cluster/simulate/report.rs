//! Results of a simulation as a table and as a document.

use anyhow::Result;
use serde::Serialize;
use windlass_sched::{
    request::SizeClass,
    simulation::{ChurnResult, ClassCounts, FillingResult, ForecastSource, Simulation},
};

use super::Runs;
use crate::{
    cli::SimulateArgs,
    screen::{Paint, Style, Table, print_line},
};

/// Results of a simulation in which pods stay.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FillingReport {
    #[serde(flatten)]
    pub(super) setting: Setting,
    /// Total GPUs that the pods request, as a multiple of the cluster's GPUs.
    load: f64,
    pub(super) policies: Vec<PolicyFilling>,
}

/// Results of a simulation in which pods end.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ChurnReport {
    #[serde(flatten)]
    setting: Setting,
    /// Load, as a multiple of the cluster's GPUs.
    departures: f64,
    queue: bool,
    policies: Vec<PolicyChurn>,
}

/// Cluster, pods, seeds, and the policies' knowledge of the pods.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Setting {
    nodes: usize,
    gpus: u64,
    /// Name of the table of pods.
    pub(super) pods: String,
    pod_count: usize,
    knowledge: &'static str,
    /// Text that describes the policies' knowledge.
    #[serde(skip)]
    forecast: &'static str,
    seeds: [u64; 2],
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PolicyFilling {
    pub(super) policy: &'static str,
    /// Allocated GPUs at each percentage of requested GPUs.
    pub(super) allocated: Vec<Point>,
    classes: Vec<ClassReport>,
    micros_per_decision: f64,
}

/// Mean over the seeds, and its standard deviation, in percent of the cluster's GPUs.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Point {
    pub(super) requested_percent: u32,
    pub(super) mean_percent: f64,
    deviation: f64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PolicyChurn {
    policy: &'static str,
    allocated_percent: f64,
    deviation: f64,
    classes: Vec<ClassReport>,
    micros_per_decision: f64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ClassReport {
    class: &'static str,
    arrived: u64,
    refused: u64,
    arrived_gpus: f64,
    refused_gpus: f64,
    /// In mean lifetimes of a pod; absent without a queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    wait: Option<Wait>,
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Wait {
    mean: f64,
    p95: f64,
}

impl Setting {
    fn new(args: &SimulateArgs, simulation: &Simulation, pods: &str) -> Self {
        let (knowledge, forecast) = match args.knowledge {
            ForecastSource::Trace => ("trace", "the frequencies of the trace"),
            ForecastSource::History => ("history", "the pods that have arrived"),
        };
        Self {
            nodes: simulation.view().nodes().len(),
            gpus: simulation.capacity_milli() / 1000,
            pods: pods.to_owned(),
            pod_count: simulation.pods().len(),
            knowledge,
            forecast,
            seeds: [*args.seeds.start(), *args.seeds.end()],
        }
    }

    /// Prints the setting, a table with `columns` of allocation before the columns of classes, and the legend.
    fn print(&self, columns: Vec<String>, rows: Vec<Vec<String>>, legend: &str) -> Result<()> {
        let Self { nodes, gpus, pods, pod_count, forecast, seeds: [first, last], .. } = self;
        print_line(format!(
            "{nodes} nodes with {gpus} GPUs; {pod_count} pods ({pods}); seeds {first} to {last}; policies know \
             {forecast}"
        ))?;
        let classes = SizeClass::ALL.map(|class| class.name().to_uppercase());
        let heading = ["POLICY".to_owned()].into_iter().chain(columns).chain(classes);
        let heading = heading.chain(["US".to_owned()]).collect();
        Table::from_rows([heading].into_iter().chain(rows).collect()).print()?;
        let legend = format!(
            "{legend}. ±: standard deviation over the seeds.\nUS: microseconds of a run per decision, with all \
             processors busy."
        );
        Ok(print_line(Paint::for_stdout().styled(Style::Muted, legend))?)
    }
}

impl FillingReport {
    pub(super) fn new(
        args: &SimulateArgs,
        simulation: &Simulation,
        pods: &str,
        runs: &[Runs<FillingResult>],
    ) -> Self {
        let policy_filling = |runs: &Runs<FillingResult>| PolicyFilling {
            policy: runs.policy.name(),
            allocated: curve(&runs.outcomes),
            classes: classes(&runs.outcomes, |result| &result.classes, |_| None),
            micros_per_decision: runs.micros_per(|result| result.decisions),
        };
        let setting = Setting::new(args, simulation, pods);
        Self { setting, load: args.load, policies: runs.iter().map(policy_filling).collect() }
    }

    pub(super) fn print(&self) -> Result<()> {
        let end = percent(self.load);
        let columns = if end > 100 { vec![100, end] } else { vec![end] };
        let row = |filling: &PolicyFilling| {
            let allocated = columns.iter().map(|column| filling.at(*column));
            let classes = filling.classes.iter().map(ClassReport::refused_percent);
            row(filling.policy, allocated, classes, filling.micros_per_decision)
        };
        let legend = "AT: allocated GPUs in percent of the cluster's, once pods have requested this percentage. By \
                      class: refused pods in percent of arrived pods";
        let headings = columns.iter().map(|column| format!("AT {column} %")).collect();
        self.setting.print(headings, self.policies.iter().map(row).collect(), legend)
    }
}

impl PolicyFilling {
    /// Text of the last point up to a percentage of requested GPUs.
    fn at(&self, requested: u32) -> String {
        let point = self.allocated.iter().rfind(|point| point.requested_percent <= requested);
        point.map_or_else(String::new, |point| spread(point.mean_percent, point.deviation))
    }
}

impl ChurnReport {
    pub(super) fn new(
        args: &SimulateArgs,
        simulation: &Simulation,
        pods: &str,
        runs: &[Runs<ChurnResult>],
    ) -> Self {
        let policy_churn = |runs: &Runs<ChurnResult>| {
            let allocated: Vec<f64> = runs.outcomes.iter().map(|result| result.allocated).collect();
            let (allocated_percent, deviation) = mean_and_deviation(&allocated);
            let wait = |class| args.queue.then(|| Wait::of(&runs.outcomes, class));
            PolicyChurn {
                policy: runs.policy.name(),
                allocated_percent,
                deviation,
                classes: classes(&runs.outcomes, |result| &result.classes, wait),
                micros_per_decision: runs.micros_per(|result| result.decisions),
            }
        };
        Self {
            setting: Setting::new(args, simulation, pods),
            departures: args.departures.unwrap_or_default(),
            queue: args.queue,
            policies: runs.iter().map(policy_churn).collect(),
        }
    }

    pub(super) fn print(&self) -> Result<()> {
        let row = |churn: &PolicyChurn| {
            let allocated = [spread(churn.allocated_percent, churn.deviation)];
            let classes = churn.classes.iter().map(ClassReport::cell);
            row(churn.policy, allocated, classes, churn.micros_per_decision)
        };
        let class_legend = if self.queue {
            "mean wait and its 95th percentile, in mean lifetimes of a pod"
        } else {
            "refused pods in percent of arrived pods"
        };
        let legend = format!(
            "ALLOCATED: mean allocated GPUs in percent of the cluster's, at a load of {} %. By class: {class_legend}",
            percent(self.departures)
        );
        let rows = self.policies.iter().map(row).collect();
        self.setting.print(vec!["ALLOCATED".to_owned()], rows, &legend)
    }
}

impl ClassReport {
    fn cell(&self) -> String {
        match self.wait {
            Some(wait) => format!("{:.3} {:.3}", wait.mean, wait.p95),
            None => self.refused_percent(),
        }
    }

    fn refused_percent(&self) -> String {
        match self.arrived {
            0 => "-".to_owned(),
            arrived => format!("{:.1} %", 100.0 * ratio(self.refused, arrived)),
        }
    }
}

impl Wait {
    fn of(runs: &[ChurnResult], class: SizeClass) -> Self {
        let mut waits: Vec<f64> =
            runs.iter().flat_map(|run| run.waits[class as usize].iter().copied()).collect();
        waits.sort_by(f64::total_cmp);
        let (mean, _) = mean_and_deviation(&waits);
        let p95 = waits.get((waits.len() * 95).div_ceil(100).saturating_sub(1)).copied();
        Self { mean, p95: p95.unwrap_or(0.0) }
    }
}

impl<T> Runs<T> {
    fn micros_per(&self, decisions: impl Fn(&T) -> u64) -> f64 {
        let total = self.outcomes.iter().map(decisions).sum::<u64>();
        self.spent.as_secs_f64() * 1e6 / ratio(total.max(1), 1)
    }
}

/// Mean allocation at each percentage that a run reached.
fn curve(runs: &[FillingResult]) -> Vec<Point> {
    let longest = runs.iter().map(|run| run.allocated.len()).max().unwrap_or(0);
    let point = |(requested_percent, column): (u32, usize)| {
        let values: Vec<f64> =
            runs.iter().filter_map(|run| run.allocated.get(column).copied().flatten()).collect();
        let (mean_percent, deviation) = mean_and_deviation(&values);
        (!values.is_empty()).then_some(Point { requested_percent, mean_percent, deviation })
    };
    (0..).zip(0..longest).filter_map(point).collect()
}

fn classes<T>(
    runs: &[T],
    classes: impl Fn(&T) -> &ClassCounts,
    wait: impl Fn(SizeClass) -> Option<Wait>,
) -> Vec<ClassReport> {
    let class_report = |class: SizeClass| {
        let counts = runs.iter().map(|run| classes(run).of(class));
        ClassReport {
            class: class.name(),
            arrived: counts.clone().map(|count| count.arrived).sum(),
            refused: counts.clone().map(|count| count.refused).sum(),
            arrived_gpus: ratio(counts.clone().map(|count| count.arrived_milli).sum(), 1000),
            refused_gpus: ratio(counts.map(|count| count.refused_milli).sum(), 1000),
            wait: wait(class),
        }
    };
    SizeClass::ALL.into_iter().map(class_report).collect()
}

fn row(
    policy: &str,
    allocated: impl IntoIterator<Item = String>,
    classes: impl Iterator<Item = String>,
    micros: f64,
) -> Vec<String> {
    let cells = [policy.to_owned()].into_iter().chain(allocated).chain(classes);
    cells.chain([format!("{micros:.1}")]).collect()
}

fn spread(mean: f64, deviation: f64) -> String {
    format!("{mean:.2} ±{deviation:.2}")
}

fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let count = ratio(values.len().max(1) as u64, 1);
    let mean = values.iter().sum::<f64>() / count;
    let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    (mean, (squares / (count - 1.0).max(1.0)).sqrt())
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most ten times")]
fn percent(times: f64) -> u32 {
    (times * 100.0).round() as u32
}
