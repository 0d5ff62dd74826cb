//! Command line of `windlass top`.

use std::path::PathBuf;

use clap::Args;

#[derive(Args, Debug)]
#[command(after_help = "\
The command reads from the node's agent, through the agent's probe socket:
  kubectl -n windlass-system exec -it daemonset/windlass-node -- /usr/bin/windlass top

Examples:
  windlass top --probe-socket /run/windlass/probe.sock
  windlass top --probe-socket /run/windlass/probe.sock --once

Pod names need `disclose: [pods]` in the agent's configuration. `windlass cluster top` shows a cluster.")]
pub(crate) struct NodeTopArgs {
    /// Socket of `windlass node --probe-socket`
    #[arg(long, value_name = "PATH", env = "WINDLASS_PROBE_SOCKET")]
    pub(crate) probe_socket: PathBuf,
    /// Print once and exit; the default if the output is not a terminal.
    #[arg(long)]
    pub(crate) once: bool,
}
