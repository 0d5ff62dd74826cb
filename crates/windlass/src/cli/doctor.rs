//! Command line of `windlass doctor`.

use std::path::PathBuf;

use clap::Args;

use super::{HostArgs, OutputArg, StatePathArgs};

#[derive(Args, Debug)]
#[command(after_help = "\
Run it as root on the node. In the agent's pod it checks everything but the container runtime:
  kubectl -n windlass-system exec daemonset/windlass-node -- /usr/bin/windlass doctor

Examples:
  windlass doctor
  windlass doctor --all -o json
  windlass doctor --config windlass.yaml     with the agent's configuration: some checks depend on it
  windlass doctor --bundle report            the findings and a recording of the host, for a bug report

`windlass cluster doctor` checks a cluster.

Exit codes: 0 no problem, 1 a problem was found, 64 wrong command line or configuration.")]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) host: HostArgs,
    #[command(flatten)]
    pub(crate) state_paths: StatePathArgs,
    /// Folder of CDI documents [default: /var/run/cdi]
    #[arg(long, value_name = "DIR", env = "WINDLASS_CDI_DIR")]
    pub(crate) cdi_dir: Option<PathBuf>,
    /// Socket of the agent's probes
    #[arg(long, value_name = "PATH", env = "WINDLASS_PROBE_SOCKET")]
    pub(crate) probe_socket: Option<PathBuf>,
    /// Socket of the container runtime [default: the usual paths]
    #[arg(long, value_name = "PATH", env = "CONTAINER_RUNTIME_ENDPOINT")]
    pub(crate) runtime_socket: Option<String>,
    /// Show passed and skipped checks too; JSON always has them.
    #[arg(long)]
    pub(crate) all: bool,
    /// Write a new folder for a bug report: the findings and a recording, anonymised as by `host record`
    #[arg(long, value_name = "DIR")]
    pub(crate) bundle: Option<PathBuf>,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: OutputArg,
}
