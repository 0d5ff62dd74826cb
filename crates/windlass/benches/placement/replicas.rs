//! The choice of replicas: 2,048 of them on 16 GPUs cost no more than 16 devices do.

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

/// Each GPU of the largest machine in this many parts: 2,048 together.
const REPLICAS: u32 = 128;

/// A question answered by replicas may take this long, whatever its size.
const BUDGET: Duration = Duration::from_millis(2);

/// Repetitions per request.
const RUNS: usize = 50;

/// Measures sizes from one replica to all of them, on a machine of 16 GPUs.
pub(crate) fn measure(machines: &[Machine]) -> Result<Row> {
    let machine = machines.iter().find(|machine| machine.name == "16-gpu");
    let machine = machine.context("there is no machine of 16 GPUs")?;
    let free: Vec<_> = (0..REPLICAS).collect();
    let ids = machine.ids();
    let shared = ids.iter().map(|id| SharedDevice { id, free: &free, in_use: 0 });
    let shared: Vec<_> = shared.collect();
    let all = shared.len() * free.len();
    let sizes = (0..=8).map(|power| 1 << power).chain([all / 2, all]);
    let measured = sizes.map(|size| Ok((size, time(machine, &shared, size)?)));
    let measured: Vec<_> = measured.collect::<Result<_>>()?;
    let slowest = measured.into_iter().max_by_key(|(_, taken)| taken.median());
    let (size, taken) = slowest.context("sizes were given")?;
    let row = Row::with_samples(format!("16-gpu: {size} of {all} replicas"), &taken);
    Ok(row.with_comparison("the slowest size").with_time_budget(taken.median(), BUDGET))
}

fn time(machine: &Machine, devices: &[SharedDevice<'_>], size: usize) -> Result<Samples> {
    let (policy, span) = (Policy::Distributed, Span::AnyDevices);
    let mut taken = Samples::default();
    for _ in 0..RUNS {
        let request = ShareRequest { devices, required: &[], near: &[], size, policy, span };
        let begun = Instant::now();
        black_box(shares::choose(&machine.topology, black_box(request))?);
        taken.push(begun.elapsed());
    }
    Ok(taken)
}
