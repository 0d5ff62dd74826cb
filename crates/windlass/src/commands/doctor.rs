//! `windlass doctor`: checks of a node, each with its severity and its remedy.

mod agent;
mod bundle;
mod devices;
mod host;
mod kubelet;
mod report;
mod runtime;
mod socket;

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

pub(super) use self::report::Diagnosis;
use super::{clock, recorded_config};
use crate::cli::{HostArgs, OutputArg, RecordArgs};

#[derive(Args, Debug)]
#[command(after_help = "\
Run it as root on the node, or in the agent's pod, which sees all but the container runtime:
  kubectl -n windlass-system exec daemonset/windlass-node -- /usr/bin/windlass doctor

Examples:
  windlass doctor
  windlass doctor --all -o json
  windlass doctor --config windlass.yaml     with the agent's configuration, which some checks depend on
  windlass doctor --bundle report            the findings and a recording of the host, for a bug report

`windlass cluster doctor` checks a cluster.

Exit codes: 0 no problem, 1 a problem was found, 64 wrong command line or configuration.")]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    host: HostArgs,
    #[command(flatten)]
    record: RecordArgs,
    /// Folder of CDI documents [default: /var/run/cdi]
    #[arg(long, value_name = "DIR", env = "WINDLASS_CDI_DIR")]
    cdi_dir: Option<PathBuf>,
    /// Socket of the agent's probes
    #[arg(long, value_name = "PATH", env = "WINDLASS_PROBE_SOCKET")]
    probe_socket: Option<PathBuf>,
    /// Socket of the container runtime [default: the usual ones]
    #[arg(long, value_name = "PATH", env = "CONTAINER_RUNTIME_ENDPOINT")]
    runtime_socket: Option<String>,
    /// Show passed and skipped checks too; JSON always has them.
    #[arg(long)]
    all: bool,
    /// Write a new folder for a bug report: the findings and a recording, anonymised as by `host record`
    #[arg(long, value_name = "DIR")]
    bundle: Option<PathBuf>,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: OutputArg,
}

pub(super) async fn run(args: DoctorArgs) -> Result<()> {
    // Without the agent's configuration, checks that depend on it are no more than warnings.
    let is_configured = args.host.config.is_some();
    let mut config = recorded_config(args.host, args.record)?;
    config.places.cdi_dir = args.cdi_dir.unwrap_or(config.places.cdi_dir);
    if let Some(folder) = &args.bundle {
        bundle::begin(folder)?;
    }
    let state = windlass_node::agent::survey(&config, clock()).await;
    let mut findings = host::check(&config);
    findings.extend(devices::check(&state));
    findings.extend(runtime::check(&config, args.runtime_socket.as_deref(), is_configured).await);
    findings.extend(kubelet::check(&config).await);
    findings.extend(agent::check(&config, args.probe_socket.as_deref()).await);
    let report = Diagnosis::new(findings).about(&state.inventory);
    if let Some(folder) = &args.bundle {
        bundle::write(folder, &config, &state.inventory, &report)?;
    }
    report.show(args.output, args.all)
}
