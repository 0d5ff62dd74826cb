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

/// The simulated driver looks at this file at each call into it, as NVIDIA's enters the kernel.
const DRIVER_STATE_FILE: &str = "/state.json\"";

/// Starts the agent once below strace.
pub(crate) async fn measure(stage: &Testbed) -> Result<Row> {
    let version = Command::new("strace").arg("-V").stdout(Stdio::null()).status();
    if !version.is_ok_and(|ended| ended.success()) {
        return Ok(Row::note(format!("{ROW_LABEL}: install strace")));
    }
    let trace = stage.path("trace");
    let (kubelet, agent) = (stage.kubelet()?, stage.agent(&[])?);
    let mut command = Command::new("strace");
    // The agent is the child of whoever asks, and strace ends with it.
    command.args(["-D", "-f", "-o"]).arg(&trace).arg(agent.get_program()).args(agent.get_args());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let agent = ChildProcess::start(&mut command)?;
    let registered = kubelet.wait_for(is_registered, EVENT_TIMEOUT).await;
    drop(agent);
    kubelet.shutdown().await;
    if registered.is_err() {
        return Ok(Row::note(format!("{ROW_LABEL}: strace may not look here, or takes too long")));
    }
    let trace = fs::read_to_string(&trace).context("cannot read what strace wrote")?;
    Ok(row(&trace))
}

fn row(trace: &str) -> Row {
    let is_socket = |line: &&str| line.contains("bind(") && line.contains("AF_UNIX");
    let until = trace.lines().take_while(|line| !is_socket(line));
    // A call during which another thread made one has two lines.
    let calls: Vec<_> = until.filter(|line| !line.contains(" resumed>")).collect();
    let count = |calls: usize| u32::try_from(calls).unwrap_or(u32::MAX);
    let of_driver = calls.iter().filter(|call| call.contains(DRIVER_STATE_FILE)).count();
    let all = count(calls.len());
    Row::single_value(ROW_LABEL, all)
        .with_comparison(format!("{of_driver} are the simulated driver's"))
        .with_budget(all.into(), MAX_CALLS.into(), "")
}
