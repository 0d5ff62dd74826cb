//! `windlass doctor`: checks of a node, each with its severity and its remedy.

mod agent;
mod bundle;
mod devices;
mod host;
mod kubelet;
mod report;
mod runtime;
mod socket;

use anyhow::Result;
use windlass_core::finding::Finding;

pub(super) use self::report::Diagnosis;
use super::{clock, config_with_state_paths};
use crate::cli::DoctorArgs;

pub(crate) async fn run(args: DoctorArgs) -> Result<()> {
    // Without the agent's configuration, checks that depend on it yield warnings at most.
    let is_configured = args.host.config.is_some();
    let mut config = config_with_state_paths(args.host, args.state_paths)?;
    config.places.cdi_dir = args.cdi_dir.unwrap_or(config.places.cdi_dir);
    if let Some(folder) = &args.bundle {
        bundle::create_folder(folder)?;
    }
    let state = windlass_node::agent::scan_host(&config, clock()).await;
    let mut findings = host::check(&config);
    findings.extend(devices::check(&state));
    if state.inventory.recorded.is_some() {
        let detail = "the host is a recording";
        findings.push(Finding::skipped("node", "container runtime, kubelet and agent", detail));
    } else {
        let socket = args.runtime_socket.as_deref();
        findings.extend(runtime::check(&config, socket, is_configured).await);
        findings.extend(kubelet::check(&config).await);
        findings.extend(agent::check(&config, args.probe_socket.as_deref()).await);
    }
    let report = Diagnosis::new(findings).with_origin(&state.inventory);
    if let Some(folder) = &args.bundle {
        bundle::write(folder, &config, &state.inventory, &report)?;
    }
    report.show(args.output, args.all)
}
