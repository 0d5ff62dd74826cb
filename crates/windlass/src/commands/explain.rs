//! `windlass explain`: which devices a request gets, and why; and why a source has the devices that it has.

mod ask;
mod joint;
mod live;
mod names;
mod past;
mod pod;
mod question;
mod report;
mod resource;
mod show;
mod source;

use anyhow::{Context as _, Result};
use tempfile::TempDir;
use windlass_machine::{Machine, Profile};
use windlass_node::{Config, agent, state::NodeState};

use super::{answer, clock, complete, host_config, machine::driver_for, recorded_config as config};
use crate::{
    cli::{AskArgs, ExplainArgs, HostArgs, RecordArgs},
    exit::Misuse,
};
use live::Kubelet;
use report::Report;

pub(super) async fn run(args: ExplainArgs) -> Result<()> {
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
    let (node, kubelet) = look(&ask, host, record).await?;
    let wanted = joint::wanted(&node, &mut ask)?;
    let asked = ask::read(&node, &kubelet, &ask)?;
    if let Some(wanted) = wanted {
        let report = joint::read(&node, &kubelet, asked, wanted)?;
        answer(output, &report, || joint::table(&report))?;
        return report.ended();
    }
    let report = Report::new(&node, asked);
    answer(output, &report, || show::table(&report))?;
    report.ended()
}

/// The machine that is asked about, and what its kubelet tells of who holds what. Nobody holds anything
/// of a simulated machine, nor of devices that are named as free.
async fn look(ask: &AskArgs, host: HostArgs, record: RecordArgs) -> Result<(NodeState, Kubelet)> {
    if let Some(profile) = &ask.machine {
        return Ok((simulated(profile, host).await?, Kubelet::default()));
    }
    let config = config(host, record)?;
    let kubelet = match ask.free {
        Some(_) => Kubelet::default(),
        None => Kubelet::ask(&config.kubelet_dir).await,
    };
    Ok((survey(&config).await?, kubelet))
}

/// The devices that are missing where a source is late would make any answer a wrong one.
async fn survey(config: &Config) -> Result<NodeState> {
    let node = agent::survey(config, clock()).await;
    complete(&node.inventory)?;
    Ok(node)
}

/// A machine that is there for as long as it is looked at. What the configuration says of resources
/// holds for it as well.
async fn simulated(profile: &str, host: HostArgs) -> Result<NodeState> {
    let profile = Profile::load(profile).map_err(|error| Misuse(error.into()))?;
    let folder = folder().context("cannot make a temporary folder")?;
    let driver = driver_for(&profile)?;
    let machine = Machine::create(&folder.path().join("machine"), &profile, &driver)
        .context("cannot make the simulated machine")?;
    let mut config = host_config(HostArgs {
        config: host.config,
        host_root: Some(machine.host_root()),
        nvml_library: profile.driver.is_some().then(|| machine.nvml_library()),
    })?;
    config.cdi_dir = folder.path().join("cdi");
    survey(&config).await
}

fn folder() -> std::io::Result<TempDir> {
    tempfile::Builder::new().prefix("windlass-").tempdir()
}
