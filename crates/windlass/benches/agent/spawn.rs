//! Time from the start of a plugin's process to its registration and to its first device list.

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
/// Budget: maximum share of another plugin's time.
const MAX_PEER_RATIO: f64 = 0.5;

/// Folder in which plugins serve that have no flag for it.
const KUBELET_DIR: &str = "/var/lib/kubelet";

/// Start time of a plugin, from before its process is created.
#[derive(Debug, Default)]
struct StartTimes {
    registered: Samples,
    listed: Samples,
}

/// Host whose GPUs the plugins offer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum GpuHost {
    /// A simulated machine with eight GPUs.
    Simulated,
    /// This host, with its own driver.
    This,
}

/// Measures alternately: `windlass --version`, the agent, the other plugin.
pub(crate) async fn measure(peer: Option<&Path>, gpu_host: GpuHost) -> Result<Vec<Row>> {
    let testbed = Testbed::create("dgx-h100")?;
    let has_kubelet = Path::new(KUBELET_DIR).join(PLUGIN_DIR).join(KUBELET_SOCKET).exists();
    let measured_peer = peer.filter(|_| !has_kubelet);
    let (mut version_times, mut agent_times, mut peer_times) = Default::default();
    // The first run reads cold files, and does not count.
    for run in 0..=RUNS {
        if run == 1 {
            (version_times, agent_times, peer_times) = Default::default();
        }
        run_version_command(&mut version_times)?;
        let mut agent = match gpu_host {
            GpuHost::Simulated => testbed.agent(&[])?,
            GpuHost::This => testbed.agent_on_this_host()?,
        };
        measure_start(testbed.kubelet()?, &mut agent, &mut agent_times).await?;
        if let Some(peer) = measured_peer {
            let kubelet = start_kubelet(Path::new(KUBELET_DIR))?;
            let mut peer = peer_command(peer, gpu_host, &testbed);
            measure_start(kubelet, &mut peer, &mut peer_times).await?;
        }
    }
    let mut rows = rows(&version_times, &agent_times, gpu_host);
    if let GpuHost::Simulated = gpu_host {
        rows.push(system_calls::measure(&testbed).await?);
    }
    match (peer, measured_peer) {
        (None, _) => rows.push(Row::note("another plugin: name it in WINDLASS_BENCH_PEER")),
        (Some(_), None) => rows.push(Row::note(format!(
            "another plugin: not measured, since a kubelet serves in {KUBELET_DIR}"
        ))),
        (Some(peer), Some(_)) => rows.extend(peer_rows(peer, &agent_times, &peer_times)),
    }
    Ok(rows)
}

fn rows(version_times: &Samples, agent_times: &StartTimes, gpu_host: GpuHost) -> Vec<Row> {
    let gpus = match gpu_host {
        GpuHost::Simulated => "8 GPUs",
        GpuHost::This => "GPUs of this host",
    };
    let difference = agent_times.registered.median().saturating_sub(version_times.median());
    vec![
        Row::with_samples("start and end of windlass --version", version_times),
        Row::with_samples(format!("spawn to registered, {gpus}"), &agent_times.registered)
            .with_comparison(format!("{} more than --version", ShortDuration(difference)))
            .with_time_budget(agent_times.registered.median(), REGISTRATION_BUDGET),
        Row::with_samples("spawn to first device list", &agent_times.listed),
    ]
}

fn peer_rows(peer: &Path, agent_times: &StartTimes, peer_times: &StartTimes) -> [Row; 2] {
    let name = peer.file_name().unwrap_or(peer.as_os_str()).display();
    let row = |milestone, agent_times: &Samples, peer_times: &Samples| {
        let ratio = agent_times.ratio_to(peer_times);
        Row::with_samples(format!("{name}: to {milestone}"), peer_times)
            .with_comparison(format!("ours takes {ratio:.2} x"))
            .with_budget(ratio, MAX_PEER_RATIO, " x")
    };
    [
        row("registered", &agent_times.registered, &peer_times.registered),
        row("first device list", &agent_times.listed, &peer_times.listed),
    ]
}

fn run_version_command(samples: &mut Samples) -> Result<()> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    command.env_clear().arg("--version").stdout(Stdio::null());
    let started = Instant::now();
    let status = command.status().context("cannot start windlass")?;
    samples.push(started.elapsed());
    ensure!(status.success(), "windlass --version failed");
    Ok(())
}

async fn measure_start(
    kubelet: Kubelet,
    command: &mut Command,
    times: &mut StartTimes,
) -> Result<()> {
    let started = Instant::now();
    let plugin = ChildProcess::start(command)?;
    kubelet.wait_for(is_registered, EVENT_TIMEOUT).await?;
    times.registered.push(started.elapsed());
    kubelet.wait_for(is_listed, EVENT_TIMEOUT).await?;
    times.listed.push(started.elapsed());
    drop(plugin);
    kubelet.shutdown().await;
    Ok(())
}

/// Command of the other plugin. It finds a simulated driver through the dynamic linker, as the real one.
fn peer_command(peer: &Path, gpu_host: GpuHost, testbed: &Testbed) -> Command {
    let mut command = Command::new(peer);
    if let GpuHost::Simulated = gpu_host {
        command.env_clear().env("LD_LIBRARY_PATH", testbed.machine.dir());
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}
