//! From the start of the process to the kubelet's knowledge of its devices.

use std::{
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use windlass_kubelet_api::deviceplugin::{KUBELET_SOCKET, PLUGIN_DIR};
use windlass_kubelet_sim::Kubelet;

use crate::{
    report::Row,
    samples::{Samples, ShortDuration},
    stage::{ChildProcess, EVENT_TIMEOUT, Testbed, is_listed, is_registered, start_kubelet},
    system_calls,
};

const RUNS: usize = 20;
const REGISTRATION_BUDGET: Duration = Duration::from_millis(10);
/// Tolerated share of another plugin's time.
const MAX_PEER_RATIO: f64 = 0.5;

/// Where plugins serve that cannot be told otherwise.
const KUBELET_DIR: &str = "/var/lib/kubelet";

/// Start time of a plugin, from before its process is created.
#[derive(Debug, Default)]
struct StartTimes {
    registered: Samples,
    listed: Samples,
}

/// In turns: a process that does nothing, the agent, the other plugin.
pub(crate) async fn measure(peer: Option<&Path>) -> Result<Vec<Row>> {
    let stage = Testbed::create("dgx-h100")?;
    let occupied = Path::new(KUBELET_DIR).join(PLUGIN_DIR).join(KUBELET_SOCKET).exists();
    let measurable = peer.filter(|_| !occupied);
    let (mut nothing, mut ours, mut theirs) = Default::default();
    // The first run finds cold files and is not counted.
    for run in 0..=RUNS {
        if run == 1 {
            (nothing, ours, theirs) = Default::default();
        }
        run_version_command(&mut nothing)?;
        measure_start(stage.kubelet()?, &mut stage.agent(&[])?, &mut ours).await?;
        if let Some(peer) = measurable {
            let kubelet = start_kubelet(Path::new(KUBELET_DIR))?;
            measure_start(kubelet, &mut peer_command(peer, &stage), &mut theirs).await?;
        }
    }
    let mut rows = rows(&nothing, &ours);
    rows.push(system_calls::measure(&stage).await?);
    match (peer, measurable) {
        (None, _) => rows.push(Row::note("another plugin: name it in WINDLASS_BENCH_PEER")),
        (Some(_), None) => rows.push(Row::note(format!(
            "another plugin: not measured, since a kubelet lives in {KUBELET_DIR}"
        ))),
        (Some(peer), Some(_)) => rows.extend(peer_rows(peer, &ours, &theirs)),
    }
    Ok(rows)
}

fn rows(nothing: &Samples, ours: &StartTimes) -> Vec<Row> {
    let more = ours.registered.median().saturating_sub(nothing.median());
    vec![
        Row::with_samples("start and end of windlass --version", nothing),
        Row::with_samples("spawn to registered, 8 GPUs", &ours.registered)
            .with_comparison(format!("{} more than --version", ShortDuration(more)))
            .with_time_budget(ours.registered.median(), REGISTRATION_BUDGET),
        Row::with_samples("spawn to first device list", &ours.listed),
    ]
}

fn peer_rows(peer: &Path, ours: &StartTimes, theirs: &StartTimes) -> [Row; 2] {
    let name = peer.file_name().unwrap_or(peer.as_os_str()).display();
    let row = |what, ours: &Samples, theirs: &Samples| {
        let ratio = ours.ratio_to(theirs);
        Row::with_samples(format!("{name}: to {what}"), theirs)
            .with_comparison(format!("ours takes {ratio:.2} x"))
            .with_budget(ratio, MAX_PEER_RATIO, " x")
    };
    [
        row("registered", &ours.registered, &theirs.registered),
        row("first device list", &ours.listed, &theirs.listed),
    ]
}

fn run_version_command(taken: &mut Samples) -> Result<()> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    command.env_clear().arg("--version").stdout(Stdio::null());
    let begun = Instant::now();
    let ended = command.status().context("cannot start windlass")?;
    taken.push(begun.elapsed());
    ensure!(ended.success(), "windlass --version failed");
    Ok(())
}

async fn measure_start(
    kubelet: Kubelet,
    command: &mut Command,
    taken: &mut StartTimes,
) -> Result<()> {
    let begun = Instant::now();
    let plugin = ChildProcess::start(command)?;
    kubelet.wait_for(is_registered, EVENT_TIMEOUT).await?;
    taken.registered.push(begun.elapsed());
    kubelet.wait_for(is_listed, EVENT_TIMEOUT).await?;
    taken.listed.push(begun.elapsed());
    drop(plugin);
    kubelet.shutdown().await;
    Ok(())
}

/// Finds the simulated driver as it finds the real one: by the dynamic linker.
fn peer_command(peer: &Path, stage: &Testbed) -> Command {
    let mut command = Command::new(peer);
    command.env_clear().env("LD_LIBRARY_PATH", stage.machine.dir());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}
