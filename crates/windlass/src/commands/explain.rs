//! `windlass explain`: the placement of a request, and the devices of a source.

mod joint;
mod live;
mod names;
mod past;
mod pod;
mod question;
mod report;
mod request;
mod resource;
mod shares;
mod show;
#[cfg(feature = "laboratory")]
mod simulated;
mod source;

use anyhow::Result;
use windlass_config::Config;
use windlass_node::agent;
use windlass_resources::NodeState;

use super::{answer, clock, recorded_config as config, require_sources};
use crate::cli::{AskArgs, ExplainArgs, HostArgs, RecordArgs};
use live::Kubelet;
use report::explained;
#[cfg(feature = "laboratory")]
use simulated::simulated;

pub(crate) async fn run(args: ExplainArgs) -> Result<()> {
    let ExplainArgs { mut ask, instead, host, record, output, .. } = args;
    if instead.past {
        return past::run(&config(host, record)?, output).await;
    }
    if let Some(pod) = instead.pod {
        return pod::run(&config(host, record)?, &pod, output).await;
    }
    if let Some(name) = instead.source {
        return source::run(config(host, record)?, &name, output).await;
    }
    let (node, kubelet) = observe(&ask, host, record).await?;
    let wanted = joint::wanted(&node, &mut ask)?;
    let request = request::read(&node, &kubelet, &ask)?;
    if let Some(wanted) = wanted {
        let report = joint::read(&node, &kubelet, request, wanted)?;
        answer(output, &report, || joint::table(&report))?;
        return report.result();
    }
    let report = explained(&node, request);
    answer(output, &report, || show::table(&report))?;
    report.result()
}

/// The machine with its holders. A simulated machine, and devices named by `--free`, have no holders.
async fn observe(
    ask: &AskArgs,
    host: HostArgs,
    record: RecordArgs,
) -> Result<(NodeState, Kubelet)> {
    #[cfg(feature = "laboratory")]
    if let Some(profile) = &ask.machine {
        return Ok((simulated(profile, host).await?, Kubelet::default()));
    }
    #[cfg(not(feature = "laboratory"))]
    if ask.machine.is_some() {
        return Err(crate::absent::no_laboratory());
    }
    let config = config(host, record)?;
    let kubelet = match ask.free {
        Some(_) => Kubelet::default(),
        None => Kubelet::read(&config.places.kubelet_dir).await,
    };
    Ok((survey(&config).await?, kubelet))
}

/// Scans the host; a missing source would make the answer wrong.
async fn survey(config: &Config) -> Result<NodeState> {
    let node = agent::survey(config, clock()).await;
    require_sources(&node.inventory)?;
    Ok(node)
}
