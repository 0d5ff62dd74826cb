//! Number of system calls before the agent's first socket, counted by strace if it is installed.

use std::{
    fs,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result};

use crate::{
    report::Row,
    stage::{ChildProcess, EVENT_TIMEOUT, Testbed, is_registered},
};

/// Budget of a start with 8 GPUs.
const MAX_CALLS: u32 = 3_000;

const ROW_LABEL: &str = "system calls before the first socket";

/// File that the simulated driver reads in each call, as NVIDIA's driver enters the kernel.
const DRIVER_STATE_FILE: &str = "/state.json\"";

/// Starts the agent once under strace.
pub(crate) async fn measure(testbed: &Testbed) -> Result<Row> {
    let version = Command::new("strace").arg("-V").stdout(Stdio::null()).status();
    if !version.is_ok_and(|status| status.success()) {
        return Ok(Row::note(format!("{ROW_LABEL}: install strace")));
    }
    let trace = testbed.path("trace");
    let (kubelet, agent) = (testbed.kubelet()?, testbed.agent(&[])?);
    let mut command = Command::new("strace");
    // With `-D` the agent is the child of this process, and strace ends with it.
    command.args(["-D", "-f", "-o"]).arg(&trace).arg(agent.get_program()).args(agent.get_args());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let agent = ChildProcess::start(&mut command)?;
    let registered = kubelet.wait_for(is_registered, EVENT_TIMEOUT).await;
    drop(agent);
    kubelet.shutdown().await;
    if registered.is_err() {
        return Ok(Row::note(format!("{ROW_LABEL}: strace is not permitted, or takes too long")));
    }
    let trace = fs::read_to_string(&trace).context("cannot read the trace")?;
    Ok(row(&trace))
}

fn row(trace: &str) -> Row {
    let is_socket = |line: &&str| line.contains("bind(") && line.contains("AF_UNIX");
    let start_calls = trace.lines().take_while(|line| !is_socket(line));
    // A call that another thread's call interrupts has two lines.
    let calls: Vec<_> = start_calls.filter(|line| !line.contains(" resumed>")).collect();
    let count = |calls: usize| u32::try_from(calls).unwrap_or(u32::MAX);
    let driver_count = calls.iter().filter(|call| call.contains(DRIVER_STATE_FILE)).count();
    let call_count = count(calls.len());
    Row::single_value(ROW_LABEL, call_count)
        .with_comparison(format!("{driver_count} by the simulated driver"))
        .with_budget(call_count.into(), MAX_CALLS.into(), "")
}
