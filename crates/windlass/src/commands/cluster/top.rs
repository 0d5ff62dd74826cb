//! `windlass cluster top`: the GPUs of all nodes, and their holders.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use tokio::time::sleep;
use tracing_subscriber::filter::{LevelFilter, Targets};
use windlass_control::{
    LiveIndex,
    index::{GpuHolder, Index, NodeSnapshot},
};

use super::view;
use crate::{
    cli::{OutputArg, TopArgs},
    commands::{
        print_output,
        top::{REFRESH_INTERVAL, first_holders},
    },
    logging::{self, LogFormat},
    screen::{FullScreen, Paint, Style, Table, pluralized, print_line, terminal_width},
    stop::StopSignals,
};

/// Poll interval until the cluster's objects have been read.
const FIRST_POLL: Duration = Duration::from_millis(100);

/// The cluster's GPUs.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    nodes: Vec<NodeRow>,
    /// GPUs of all nodes.
    gpus: usize,
    /// Healthy GPUs without a holder.
    free_gpus: u32,
    /// Healthy GPUs and parts of GPUs without a holder, in GPUs.
    idle_gpus: f64,
    /// Expected part of the idle GPUs that a typical pod of this cluster cannot use.
    fragmented_gpus: f64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeRow {
    name: String,
    free_gpus: u32,
    idle_gpus: f64,
    gpus: Vec<GpuRow>,
    cpu_free: f64,
    memory_free_mib: u32,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct GpuRow {
    /// Device id; absent if no agent published one.
    id: Option<String>,
    model: String,
    memory_mib: u32,
    /// Part without a holder in percent, of the scarcer of compute and memory.
    idle_percent: u16,
    obstacle: Option<String>,
    holders: Vec<HolderRow>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct HolderRow {
    pod: String,
    /// Share of the memory in MiB; absent for a whole GPU.
    memory_mib: Option<u32>,
    /// Share of the compute in percent; absent for a whole GPU.
    compute_percent: Option<u16>,
}

pub(super) async fn run(args: TopArgs) -> Result<()> {
    if args.watch {
        return watch(args).await;
    }
    let mut index = view::objects(&args.view).await?.to_index();
    let report = Report::of(&mut index);
    print_output(args.output, &report, || report.print(args.gpus))
}

/// Prints the cluster every `REFRESH_INTERVAL`, until stopped.
async fn watch(args: TopArgs) -> Result<()> {
    logging::to_stderr(LogFormat::Text, Targets::new().with_default(LevelFilter::WARN));
    let live = LiveIndex::connect(args.view.kubeconfig.clone()).await?;
    let mut signals = StopSignals::listen()?;
    let mut screen = FullScreen::new().filter(|_| args.output == OutputArg::Table);
    let print_loop = async {
        loop {
            let Some(report) = live.with_index(Report::of) else {
                sleep(FIRST_POLL).await;
                continue;
            };
            match &mut screen {
                Some(screen) => screen.draw(&report.to_lines(args.gpus, terminal_width()))?,
                None => print_output(args.output, &report, || report.print(args.gpus))?,
            }
            sleep(REFRESH_INTERVAL).await;
        }
    };
    tokio::select! {
        () = Box::pin(live.run()) => Ok(()),
        result = print_loop => result,
        _ = signals.recv() => Ok(()),
    }
}

// === impl Report ===

impl Report {
    fn of(index: &mut Index) -> Self {
        let fragmented_gpus = index.fragmentation();
        let nodes = index.node_snapshots();
        let nodes = nodes.iter().filter(|node| !node.facts.gpus.is_empty()).map(NodeRow::of);
        let nodes: Vec<_> = nodes.collect();
        Self {
            gpus: nodes.iter().map(|node| node.gpus.len()).sum(),
            free_gpus: nodes.iter().map(|node| node.free_gpus).sum(),
            // An empty sum is -0.0.
            idle_gpus: nodes.iter().map(|node| node.idle_gpus).sum::<f64>() + 0.0,
            fragmented_gpus,
            nodes,
        }
    }

    fn print(&self, gpus: bool) -> Result<()> {
        Ok(self.to_lines(gpus, terminal_width()).into_iter().try_for_each(print_line)?)
    }

    /// Lines of the table and the totals, cut to `width` if it is given.
    fn to_lines(&self, gpus: bool, width: Option<usize>) -> Vec<String> {
        let table = if gpus { self.gpu_table() } else { self.node_table() };
        let mut lines = width.map_or_else(|| table.lines(""), |width| table.lines_within(width));
        lines.push(self.totals());
        lines
    }

    fn node_table(&self) -> Table {
        let mut table =
            Table::new(["NODE", "GPUS", "FREE", "IDLE", "CPU FREE", "MEMORY FREE", "MODEL"]);
        for node in &self.nodes {
            let model = node.gpus.first().map(|gpu| gpu.model.clone()).unwrap_or_default();
            table.add_row([
                node.name.clone(),
                node.gpus.len().to_string(),
                node.free_gpus.to_string(),
                format!("{:.2}", node.idle_gpus),
                format!("{:.1}", node.cpu_free),
                format!("{} GiB", node.memory_free_mib / 1024),
                model,
            ]);
        }
        table
    }

    fn gpu_table(&self) -> Table {
        let mut table = Table::new(["NODE", "GPU", "IDLE", "STATE", "MODEL", "HELD BY"]);
        for node in &self.nodes {
            for (position, gpu) in node.gpus.iter().enumerate() {
                table.add_row([
                    node.name.clone(),
                    gpu.id.clone().unwrap_or_else(|| position.to_string()),
                    format!("{} %", gpu.idle_percent),
                    gpu.obstacle.clone().unwrap_or_else(|| "healthy".to_owned()),
                    gpu.model.clone(),
                    first_holders(gpu.holders.iter().map(HolderRow::text)),
                ]);
            }
        }
        table
    }

    fn totals(&self) -> String {
        let (nodes, gpus) = (pluralized(self.nodes.len(), "node"), pluralized(self.gpus, "GPU"));
        let text = format!(
            "{nodes}, {gpus}: {} free, {:.2} idle, of which a typical pod cannot use {:.2}",
            self.free_gpus, self.idle_gpus, self.fragmented_gpus
        );
        Paint::for_stdout().styled(Style::Muted, text)
    }
}

// === impl NodeRow ===

impl NodeRow {
    fn of(node: &NodeSnapshot<'_>) -> Self {
        Self {
            name: node.facts.name.clone(),
            free_gpus: node.state.free_gpus().len(),
            idle_gpus: f64::from(node.state.idle_milli()) / 1000.0,
            gpus: (0..node.facts.gpus.len()).map(|position| GpuRow::of(node, position)).collect(),
            cpu_free: f64::from(node.state.cpu_milli.free) / 1000.0,
            memory_free_mib: node.state.memory_mib.free,
        }
    }
}

// === impl GpuRow ===

impl GpuRow {
    fn of(node: &NodeSnapshot<'_>, position: usize) -> Self {
        let facts = &node.facts.gpus[position];
        Self {
            id: facts.id.as_ref().map(ToString::to_string),
            model: facts.model.clone(),
            memory_mib: facts.memory_mib,
            idle_percent: node.state.gpus[position].idle_milli() / 10,
            obstacle: facts.obstacle.clone(),
            holders: node.holders_of(position).map(HolderRow::of).collect(),
        }
    }
}

// === impl HolderRow ===

impl HolderRow {
    fn of((holder, share): (GpuHolder<'_>, Option<(u16, u32)>)) -> Self {
        let pod = match holder {
            GpuHolder::Pod(pod) => pod.namespaced_name(),
            GpuHolder::Claim(held) => format!("claim {}", held.claim),
        };
        Self {
            pod,
            memory_mib: share.map(|(_, mib)| mib),
            compute_percent: share.map(|(milli, _)| milli / 10),
        }
    }

    fn text(&self) -> String {
        let memory = self.memory_mib.filter(|mib| *mib > 0).map(|mib| format!("{mib} MiB"));
        let compute = self
            .compute_percent
            .filter(|percent| *percent > 0)
            .map(|percent| format!("{percent} %"));
        let share: Vec<_> = memory.into_iter().chain(compute).collect();
        if share.is_empty() {
            self.pod.clone()
        } else {
            format!("{} ({})", self.pod, share.join(", "))
        }
    }
}
