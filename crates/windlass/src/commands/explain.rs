//! `windlass explain`: the placement of a request, and the devices of a source.

mod joint;
mod live;
mod names;
mod past;
mod placement_request;
mod pod;
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

use super::{clock, config_with_state_paths as config, print_output, require_sources};
use crate::cli::{ExplainArgs, HostArgs, RequestArgs, StatePathArgs};
use live::KubeletState;
use report::answer_request;
#[cfg(feature = "laboratory")]
use simulated::simulated;

pub(crate) async fn run(args: ExplainArgs) -> Result<()> {
    let ExplainArgs { mut request_args, lookup, host, state_paths, output, .. } = args;
    if lookup.past {
        return past::run(&config(host, state_paths)?, output).await;
    }
    if let Some(pod) = lookup.pod {
        return pod::run(&config(host, state_paths)?, &pod, output).await;
    }
    if let Some(name) = lookup.source {
        return source::run(config(host, state_paths)?, &name, output).await;
    }
    let (node, kubelet) = observe(&request_args, host, state_paths).await?;
    // A joint request is for GPUs together with NICs.
    let nic_request = joint::take_nic_request(&node, &mut request_args)?;
    let request = request::read_request(&node, &kubelet, &request_args)?;
    if let Some(nic_request) = nic_request {
        let report = joint::answer_joint_request(&node, &kubelet, request, nic_request)?;
        print_output(output, &report, || joint::table(&report))?;
        return report.result();
    }
    let report = answer_request(&node, request);
    print_output(output, &report, || show::table(&report))?;
    report.result()
}

/// Scans the machine, and reads the holders of its devices. A simulated machine has no holders; with `--free`, holders
/// are not read.
async fn observe(
    args: &RequestArgs,
    host: HostArgs,
    state_paths: StatePathArgs,
) -> Result<(NodeState, KubeletState)> {
    #[cfg(feature = "laboratory")]
    if let Some(profile) = &args.machine {
        return Ok((simulated(profile, host).await?, KubeletState::default()));
    }
    #[cfg(not(feature = "laboratory"))]
    if args.machine.is_some() {
        return Err(crate::absent::no_laboratory());
    }
    let config = config(host, state_paths)?;
    let kubelet = match args.free {
        Some(_) => KubeletState::default(),
        None => KubeletState::read(&config.places.kubelet_dir).await,
    };
    Ok((scan_host(&config).await?, kubelet))
}

/// Scans the host. Fails if a source is missing, because the answer would be wrong.
async fn scan_host(config: &Config) -> Result<NodeState> {
    let node = agent::scan_host(config, clock()).await;
    require_sources(&node.inventory)?;
    Ok(node)
}
