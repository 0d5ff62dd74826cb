//! `windlass probe`: liveness and readiness check of the local agent.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum};
use tokio::time::timeout;
use windlass_node::{Probe, probe_agent};

use crate::screen::line;

#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 yes, 1 no or no answer, 64 wrong command line. The reasons are on stdout.

Examples:
  windlass probe health --probe-socket /run/windlass/probe.sock
  WINDLASS_PROBE_SOCKET=/run/windlass/probe.sock windlass probe ready")]
pub(crate) struct ProbeArgs {
    /// Check to perform
    #[arg(value_name = "QUESTION", default_value = "health")]
    question: QuestionArg,
    /// Socket of `windlass node --probe-socket`
    #[arg(long, value_name = "PATH", env = "WINDLASS_PROBE_SOCKET")]
    probe_socket: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum QuestionArg {
    /// Liveness: /healthz.
    Health,
    /// Readiness: /readyz.
    Ready,
}

/// Below the manifest's `timeoutSeconds: 5`: a kubelet discards the output of a probe that it kills.
const LIMIT: Duration = Duration::from_secs(4);

pub(super) async fn run(args: ProbeArgs) -> Result<()> {
    let (question, no) = match args.question {
        QuestionArg::Health => (Probe::Health, "the agent is not healthy"),
        QuestionArg::Ready => (Probe::Readiness, "the agent is not ready"),
    };
    let answer = timeout(LIMIT, probe_agent(&args.probe_socket, question)).await;
    let answer = answer.with_context(|| format!("the agent did not answer within {LIMIT:?}"))??;
    line(answer.report.trim_end())?;
    ensure!(answer.is_ok, no);
    Ok(())
}
