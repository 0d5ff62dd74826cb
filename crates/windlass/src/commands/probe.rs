//! `windlass probe`: asks the agent of the same node or pod how it is, as a kubelet's probe.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum};
use tokio::time::timeout;
use windlass_node::{Probe, probe_agent};

use crate::screen::line;

#[derive(Args, Debug)]
#[command(after_help = "\
Ends with 0 when the answer is yes, with 1 when it is no or when nobody answers; the reasons are on standard output.

Examples:
  windlass probe health --probe-socket /run/windlass/probe.sock
  WINDLASS_PROBE_SOCKET=/run/windlass/probe.sock windlass probe ready")]
pub(crate) struct ProbeArgs {
    /// What to ask
    #[arg(value_name = "QUESTION", default_value = "health")]
    question: QuestionArg,
    /// The socket that `windlass node --probe-socket` answers on
    #[arg(long, value_name = "PATH", env = "WINDLASS_PROBE_SOCKET")]
    probe_socket: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum QuestionArg {
    /// Whether the agent should go on: /healthz.
    Health,
    /// Whether a pod that asks for a device can get it: /readyz.
    Ready,
}

/// Below the `timeoutSeconds: 5` of the manifest: a kubelet shows what a probe said, unless it had to end it.
const LIMIT: Duration = Duration::from_secs(4);

pub(super) async fn run(args: ProbeArgs) -> Result<()> {
    let (question, no) = match args.question {
        QuestionArg::Health => (Probe::Health, "the agent is not healthy"),
        QuestionArg::Ready => (Probe::Readiness, "the agent is not ready"),
    };
    let answer = timeout(LIMIT, probe_agent(&args.probe_socket, question)).await;
    let answer = answer.with_context(|| format!("the agent did not answer within {LIMIT:?}"))??;
    line(answer.report.trim_end())?;
    ensure!(answer.is_good, no);
    Ok(())
}
