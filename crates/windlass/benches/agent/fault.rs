//! From a fault to the kubelet's knowledge of it.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use windlass_machine::{Fault, Machine};

use crate::{
    report::Row,
    samples::Samples,
    stage::{RESOURCE, ServingAgent, Testbed},
};

/// Few enough that a GPU which fails again and again is not kept back for long.
const RUNS: usize = 32;
const DETECTION_BUDGET: Duration = Duration::from_millis(10);

/// A GPU that fell off the bus, as the driver's log has it.
const XID: u64 = 79;

/// Devices recover at once, so that the next run can begin.
const CONFIG: &str = "health: {quietPeriod: 20ms, probeInterval: 10s}\n";

/// Measures from before the fault is written to after the list is taken in.
pub(crate) async fn measure() -> Result<Vec<Row>> {
    let stage = Testbed::create("dgx-h100")?;
    let config = stage.path("config.yaml");
    std::fs::write(&config, CONFIG).context("cannot write the configuration")?;
    let served = stage.serve(&["--config".as_ref(), config.as_ref()]).await?;
    let (mut written, mut told) = (Samples::default(), Samples::default());
    for run in 0..RUNS {
        wait_for_healthy(&served, 8).await?;
        let fault = Fault::Xid { gpu: run % 8, code: XID };
        let machine = served.testbed.machine.clone();
        let begun = Instant::now();
        let (injected, listed) = tokio::join!(inject(machine, fault), async {
            wait_for_healthy(&served, 7).await.map(|()| begun.elapsed())
        });
        written.push(injected?);
        told.push(listed?);
    }
    Ok(vec![
        Row::with_samples("writing a fault to the simulated driver", &written),
        Row::with_samples("fault to device list", &told)
            .with_comparison("the writing included")
            .with_time_budget(told.median(), DETECTION_BUDGET),
    ])
}

/// On a thread of its own: the kubelet here goes on meanwhile.
async fn inject(machine: Machine, fault: Fault) -> Result<Duration> {
    let begun = Instant::now();
    tokio::task::spawn_blocking(move || machine.inject(&fault)).await??;
    Ok(begun.elapsed())
}

async fn wait_for_healthy(served: &ServingAgent, healthy: usize) -> Result<()> {
    let listed = served.wait_for(|node| node.counts(RESOURCE) == Some((8, healthy)));
    listed.await.map(drop)
}
