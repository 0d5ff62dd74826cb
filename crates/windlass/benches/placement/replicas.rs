//! Time to choose replicas: 2,048 replicas on 16 GPUs cost no more than 16 devices.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use windlass_core::placement::{
    Policy,
    shares::{self, ShareRequest, SharedDevice, Span},
};

use crate::{machines::Machine, report::Row, samples::Samples};

/// Replicas of each GPU of the largest machine: 2,048 in total.
const REPLICAS: u32 = 128;

/// Budget of a request for replicas of any size.
const BUDGET: Duration = Duration::from_millis(2);

/// Repetitions per request.
const RUNS: usize = 50;

/// Measures sizes from one replica to all of them, on a machine of 16 GPUs.
pub(crate) fn measure(machines: &[Machine]) -> Result<Row> {
    let machine = machines.iter().find(|machine| machine.name == "16-gpu");
    let machine = machine.context("there is no machine of 16 GPUs")?;
    let free: Vec<_> = (0..REPLICAS).collect();
    let ids = machine.ids();
    let devices = ids.iter().map(|id| SharedDevice { id, free: &free, in_use: 0 });
    let devices: Vec<_> = devices.collect();
    let replica_count = devices.len() * free.len();
    let sizes = (0..=8).map(|power| 1 << power).chain([replica_count / 2, replica_count]);
    let measured = sizes.map(|size| Ok((size, time(machine, &devices, size)?)));
    let measured: Vec<_> = measured.collect::<Result<_>>()?;
    let slowest = measured.into_iter().max_by_key(|(_, samples)| samples.median());
    let (size, samples) = slowest.context("no size was measured")?;
    let row = Row::with_samples(format!("16-gpu: {size} of {replica_count} replicas"), &samples);
    Ok(row.with_comparison("the slowest size").with_time_budget(samples.median(), BUDGET))
}

fn time(machine: &Machine, devices: &[SharedDevice<'_>], size: usize) -> Result<Samples> {
    let (policy, span) = (Policy::Distributed, Span::AnyDevices);
    let mut samples = Samples::default();
    for _ in 0..RUNS {
        let request = ShareRequest { devices, required: &[], near: &[], size, policy, span };
        let started = Instant::now();
        black_box(shares::choose(&machine.topology, black_box(request))?);
        samples.push(started.elapsed());
    }
    Ok(samples)
}
