//! Time from a fault of a GPU to the kubelet's device list without it.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use windlass_machine::{Fault, Machine};

use crate::{
    report::Row,
    samples::Samples,
    stage::{RESOURCE, ServingAgent, Testbed},
};

/// Number of faults. It is small, since repeated faults of a GPU extend the period for which it is withheld.
const RUNS: usize = 32;
const DETECTION_BUDGET: Duration = Duration::from_millis(10);

/// The XID of a GPU that has fallen off the bus.
const XID: u64 = 79;

/// Devices recover quickly, so that the next run can start.
const CONFIG: &str = "health: {quietPeriod: 20ms, probeInterval: 10s}\n";

/// Measures from before the fault is written until the kubelet has processed the list.
pub(crate) async fn measure() -> Result<Vec<Row>> {
    let testbed = Testbed::create("dgx-h100")?;
    let config = testbed.path("config.yaml");
    std::fs::write(&config, CONFIG).context("cannot write the configuration")?;
    let serving_agent = testbed.serve(&["--config".as_ref(), config.as_ref()]).await?;
    let (mut write_times, mut list_times) = (Samples::default(), Samples::default());
    for run in 0..RUNS {
        wait_for_healthy(&serving_agent, 8).await?;
        let fault = Fault::Xid { gpu: run % 8, code: XID };
        let machine = serving_agent.testbed.machine.clone();
        let started = Instant::now();
        let (write_time, list_time) = tokio::join!(inject(machine, fault), async {
            wait_for_healthy(&serving_agent, 7).await.map(|()| started.elapsed())
        });
        write_times.push(write_time?);
        list_times.push(list_time?);
    }
    Ok(vec![
        Row::with_samples("writing a fault to the simulated driver", &write_times),
        Row::with_samples("fault to device list", &list_times)
            .with_comparison("includes the write")
            .with_time_budget(list_times.median(), DETECTION_BUDGET),
    ])
}

/// Injects a fault on a blocking thread, so that the kubelet in this process continues.
async fn inject(machine: Machine, fault: Fault) -> Result<Duration> {
    let started = Instant::now();
    tokio::task::spawn_blocking(move || machine.inject(&fault)).await??;
    Ok(started.elapsed())
}

async fn wait_for_healthy(serving_agent: &ServingAgent, healthy: usize) -> Result<()> {
    let wait = serving_agent.wait_for(|node| node.counts(RESOURCE) == Some((8, healthy)));
    wait.await.map(drop)
}
