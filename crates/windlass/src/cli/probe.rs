//! Command line of `windlass probe`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 the check passed, 1 it failed or the agent did not answer, 64 wrong command line. The reasons are on
stdout.

Examples:
  windlass probe health --probe-socket /run/windlass/probe.sock
  WINDLASS_PROBE_SOCKET=/run/windlass/probe.sock windlass probe ready")]
pub(crate) struct ProbeArgs {
    /// Check to perform
    #[arg(value_name = "CHECK", default_value = "health")]
    pub(crate) check: ProbeCheckArg,
    /// Socket of `windlass node --probe-socket`
    #[arg(long, value_name = "PATH", env = "WINDLASS_PROBE_SOCKET")]
    pub(crate) probe_socket: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProbeCheckArg {
    /// Liveness: /healthz.
    Health,
    /// Readiness: /readyz.
    Ready,
}
