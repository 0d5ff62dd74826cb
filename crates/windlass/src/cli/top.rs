//! Command line of `windlass top`.

use std::path::PathBuf;

use clap::Args;

#[derive(Args, Debug)]
#[command(after_help = "\
It asks the node's agent, on the socket of its probes:
  kubectl -n windlass-system exec -it daemonset/windlass-node -- /usr/bin/windlass top

Examples:
  windlass top --probe-socket /run/windlass/probe.sock
  windlass top --probe-socket /run/windlass/probe.sock --once

Names of pods need `disclose: [pods]`. `windlass cluster top` shows a cluster.")]
pub(crate) struct TopOfNodeArgs {
    /// Socket of `windlass node --probe-socket`
    #[arg(long, value_name = "PATH", env = "WINDLASS_PROBE_SOCKET")]
    pub(crate) probe_socket: PathBuf,
    /// Print once and exit, as to a pipe.
    #[arg(long)]
    pub(crate) once: bool,
}
