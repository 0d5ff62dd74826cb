//! `windlass probe`: liveness and readiness check of the local agent.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::time::timeout;
use windlass_node::{Probe, probe_agent};

use crate::{
    cli::{ProbeArgs, ProbeCheckArg},
    screen::print_line,
};

/// Below the manifest's `timeoutSeconds: 5`: a kubelet discards the output of a probe that it kills.
const ANSWER_LIMIT: Duration = Duration::from_secs(4);

pub(crate) async fn run(args: ProbeArgs) -> Result<()> {
    let (probe, failure) = match args.check {
        ProbeCheckArg::Health => (Probe::Health, "the agent is not healthy"),
        ProbeCheckArg::Ready => (Probe::Readiness, "the agent is not ready"),
    };
    let answer = timeout(ANSWER_LIMIT, probe_agent(&args.probe_socket, probe)).await;
    let answer =
        answer.with_context(|| format!("the agent did not answer within {ANSWER_LIMIT:?}"))??;
    print_line(answer.report.trim_end())?;
    ensure!(answer.is_ok, failure);
    Ok(())
}
