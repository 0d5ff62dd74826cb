//! Text form of the cluster demo's events.

use windlass_control::explanation::Explanation;

use super::{
    event::{AgentPod, ClusterEvent, Summary},
    policy_state::Figures,
};
use crate::{
    demo::report::{Render, Renderer, grant_items},
    screen::{pluralized, wrapped},
};

/// Symbols for zero to eight allocated eighths of a node's GPUs.
const SYMBOLS: [char; 9] = ['·', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Nodes per line of a drawing.
const NODES_PER_LINE: usize = 100;
/// Maximum number of reasons, and of remedies, in the output.
const MAX_REASONS: usize = 3;

const WINDLASS: &str = "windlass";
const KUBE_SCHEDULER: &str = "kube-scheduler's default";

impl Render for ClusterEvent {
    fn lines(&self, render: Renderer) -> Vec<String> {
        match self {
            Self::AgentJoined { node, gpus, took_ms } => {
                let (ok, gpus, elapsed) =
                    (render.ok(), pluralized(*gpus, "GPU"), render.elapsed(*took_ms));
                vec![
                    String::new(),
                    format!("  {ok} the agent of node {node} publishes {gpus} {elapsed}"),
                ]
            }
            Self::OnRealNode { node } => {
                render.heading(&format!("Pods that select node {node}, in containers of its agent"))
            }
            Self::PodRuns(runs) => pod_runs(render, runs),
            Self::NoRoom { pod } => {
                vec![String::new(), render.muted(format!("  The node has no room for pod {pod}"))]
            }
            Self::Arriving { pods, gpus, nodes, asked_percent } => {
                arriving(render, &[*pods, *gpus, *nodes], *asked_percent)
            }
            Self::Load { asked_percent, ours, stock } => {
                let row =
                    format!("  {asked_percent:>3} %  {}     {}", figures(ours), figures(stock));
                vec![row]
            }
            Self::Drawn { asked_percent, ours, stock } => {
                let title = format!("Nodes at {asked_percent} %, from free (·) to full (█):");
                let mut lines = vec![String::new(), format!("  {title}")];
                lines.extend(draw(render, WINDLASS, ours));
                lines.extend(draw(render, KUBE_SCHEDULER, stock));
                lines.push(String::new());
                lines
            }
            Self::ExtenderReplaced { took_ms } => {
                let (ok, elapsed) = (render.ok(), render.elapsed(*took_ms));
                let result =
                    "the extender ends, and another one reads the cluster and binds the next pod";
                vec![format!("  {ok} {result} {elapsed}")]
            }
            Self::Pending { explanation } => pending(render, explanation),
            Self::RemedyHelped { pod, node, gone, took_ms } => {
                let (ok, pod, elapsed) = (render.ok(), render.bold(pod), render.elapsed(*took_ms));
                vec![format!("  {ok} pod {gone} is deleted, and pod {pod} is on {node} {elapsed}")]
            }
            Self::Finished(summary) => finished(render, summary),
        }
    }
}

fn pod_runs(render: Renderer, runs: &AgentPod) -> Vec<String> {
    let AgentPod { pod, asks, gpus, container, took_ms } = runs;
    let (ok, pod, elapsed) = (render.ok(), render.bold(pod), render.elapsed(*took_ms));
    let asks = asks.iter().map(|(resource, count)| format!("{resource}: {count}"));
    let mut lines = vec![String::new(), format!("  {ok} pod {pod} runs {elapsed}")];
    lines.extend(wrapped("       asks  ", asks));
    lines.extend(wrapped("       is on ", gpus));
    lines.extend(wrapped("       gets  ", grant_items(container)));
    lines
}

fn finished(render: Renderer, summary: &Summary) -> Vec<String> {
    let Summary { pods, cycle_p50_ms, cycle_p99_ms, as_decided, elsewhere, took_ms } = summary;
    let (ok, seconds) = (render.ok(), took_ms / 1000.0);
    let (pods, agent_pods) = (pluralized(*pods, "pod"), pluralized(as_decided + elsewhere, "pod"));
    let mut lines = render.heading("Checked");
    lines.push(format!("  {ok} no GPU has two owners, by the objects of the API server"));
    lines.push(format!(
        "  {ok} {agent_pods} in containers of the real agent: {as_decided} with the GPUs that the extender chose, \
         {elsewhere} with others of the node"
    ));
    lines.push(format!(
        "  {ok} {pods} bound; from a pod's creation to its binding {cycle_p50_ms:.1} ms, and {cycle_p99_ms:.1} ms \
         for 99 of 100"
    ));
    lines.extend(render.heading(&format!("All steps passed, in {seconds:.1} s.")));
    lines
}

fn arriving(render: Renderer, [pods, gpus, nodes]: &[usize; 3], percent: u64) -> Vec<String> {
    let (pods, nodes) = (pluralized(*pods, "pod"), pluralized(*nodes, "node"));
    let mut lines = render.heading(&format!(
        "{pods} come to {nodes} with {gpus} GPUs, and ask for {percent} % of them"
    ));
    let padded = |name: &str| format!("{name:<33}");
    lines.push(format!("         {}   {}", padded(WINDLASS), KUBE_SCHEDULER));
    let columns = "ALLOCATED  UNUSABLE  ROOM FOR 8";
    lines.push(format!("  ASKED  {columns:<33}   {columns}"));
    lines
}

/// Allocated GPUs, idle ones that a typical pod cannot use, and nodes with eight free GPUs.
fn figures(figures: &Figures) -> String {
    let Figures { allocated_percent, fragmented_gpus, nodes_for_eight, .. } = figures;
    format!("{allocated_percent:>7.1} %  {fragmented_gpus:>8.1}  {nodes_for_eight:>5} nodes")
}

fn draw(render: Renderer, name: &str, eighths: &[u32]) -> Vec<String> {
    let symbol = |eighth: &u32| SYMBOLS.get(*eighth as usize).copied().unwrap_or(SYMBOLS[8]);
    let symbols: Vec<char> = eighths.iter().map(symbol).collect();
    let line = |part: &[char]| format!("    {}", part.iter().collect::<String>());
    let title = format!("  {}", render.bold(name));
    std::iter::once(title).chain(symbols.chunks(NODES_PER_LINE).map(line)).collect()
}

fn pending(render: Renderer, explanation: &Explanation) -> Vec<String> {
    let Explanation { pod, wants, refused, remedies, .. } = explanation;
    let mut lines = render.heading("A pod waits");
    lines.push(format!("  {} asks for {wants}", render.bold(pod)));
    for refusal in refused.iter().take(MAX_REASONS) {
        lines.push(format!("    {}: {}", pluralized(refusal.nodes, "node"), refusal.reason));
    }
    for remedy in remedies.iter().take(MAX_REASONS) {
        lines.push(render.muted(format!("    would help: {remedy}")));
    }
    lines
}
