//! `windlass probe`: liveness and readiness check of the local agent.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::time::timeout;
use windlass_node::{Probe, probe_agent};

use crate::{
    cli::{ProbeArgs, QuestionArg},
    screen::line,
};

/// Below the manifest's `timeoutSeconds: 5`: a kubelet discards the output of a probe that it kills.
const LIMIT: Duration = Duration::from_secs(4);

pub(crate) async fn run(args: ProbeArgs) -> Result<()> {
    let (question, failure) = match args.question {
        QuestionArg::Health => (Probe::Health, "the agent is not healthy"),
        QuestionArg::Ready => (Probe::Readiness, "the agent is not ready"),
    };
    let answer = timeout(LIMIT, probe_agent(&args.probe_socket, question)).await;
    let answer = answer.with_context(|| format!("the agent did not answer within {LIMIT:?}"))??;
    line(answer.report.trim_end())?;
    ensure!(answer.is_ok, failure);
    Ok(())
}
