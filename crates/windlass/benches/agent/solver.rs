//! The placement solver alone: the worst of all sizes.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use windlass_core::{
    device::{Device, DeviceKind},
    placement::{
        Policy, Request, Topology, choose,
        shares::{self, ShareRequest, SharedDevice, Span},
    },
};
use windlass_node::{Config, agent, clock::Clock, config::DriverPlaces};

use crate::{report::Row, samples::Samples, stage::Stage};

const RUNS: usize = 200;

/// Machines whose GPUs are connected in different ways, by the number of their GPUs, and the limit.
const MACHINES: [(&str, Duration); 3] = [
    ("dgx-h100", Duration::from_micros(100)),
    ("l40s-pcie", Duration::from_micros(100)),
    ("16-gpu", Duration::from_millis(2)),
];

/// Measures a question for each size on each machine.
pub(crate) async fn measure() -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (profile, limit) in MACHINES {
        let devices = gpus(profile).await?;
        let (size, taken) = worst(&devices)?;
        let what = format!("placement, {size} of {} GPUs, {profile}", devices.len());
        rows.push(
            Row::timed(what, &taken).compared("the slowest size").at_most(taken.median(), limit),
        );
    }
    rows.push(measure_shares().await?);
    Ok(rows)
}

/// Every GPU of the largest machine in this many parts: 2,048 together.
const REPLICAS: u32 = 128;

/// A question answered by replicas may take this long, whatever its size.
const SHARES_WITHIN: Duration = Duration::from_millis(2);

/// Measures sizes from one replica to all of them, on a machine of 16 GPUs.
async fn measure_shares() -> Result<Row> {
    let devices = gpus("16-gpu").await?;
    let free: Vec<_> = (0..REPLICAS).collect();
    let topology = Topology::from_devices(&devices);
    let ids: Vec<_> = devices.iter().map(|device| device.id.as_str()).collect();
    let shared = ids.iter().map(|id| SharedDevice { id, free: &free, in_use: 0 });
    let shared: Vec<_> = shared.collect();
    let all = shared.len() * free.len();
    let sizes = (0..=8).map(|power| 1 << power).chain([all / 2, all]);
    let measured = sizes.map(|size| Ok((size, time_shares(&topology, &shared, size)?)));
    let measured: Vec<_> = measured.collect::<Result<_>>()?;
    let slowest = measured.into_iter().max_by_key(|(_, taken)| taken.median());
    let (size, taken) = slowest.context("sizes were given")?;
    let row = Row::timed(format!("shares, {size} of {all} replicas, 16-gpu"), &taken);
    Ok(row.compared("the slowest size").at_most(taken.median(), SHARES_WITHIN))
}

fn time_shares(topology: &Topology, devices: &[SharedDevice<'_>], size: usize) -> Result<Samples> {
    let (policy, span) = (Policy::Distributed, Span::AnyDevices);
    let mut taken = Samples::default();
    for _ in 0..RUNS / 4 {
        let request = ShareRequest { devices, required: &[], size, policy, span };
        let begun = Instant::now();
        black_box(shares::choose(topology, black_box(request))?);
        taken.push(begun.elapsed());
    }
    Ok(taken)
}

/// The GPUs as the agent describes them.
async fn gpus(profile: &str) -> Result<Vec<Device>> {
    let stage = Stage::set(profile)?;
    let config = Config {
        host_root: stage.machine.host_root(),
        driver: DriverPlaces {
            nvml_library: Some(stage.machine.nvml_library()),
            ..DriverPlaces::default()
        },
        ..Config::default()
    };
    let inventory = agent::survey(&config, Clock::starting_at(Timestamp::now())).await.inventory;
    Ok(inventory.devices.into_iter().filter(|device| device.kind == DeviceKind::Gpu).collect())
}

fn worst(devices: &[Device]) -> Result<(usize, Samples)> {
    let topology = Topology::from_devices(devices);
    let available: Vec<_> = devices.iter().map(|device| device.id.as_str()).collect();
    let measured = (1..=devices.len()).map(|size| Ok((size, time(&topology, &available, size)?)));
    let measured: Vec<_> = measured.collect::<Result<_>>()?;
    let slowest = measured.into_iter().max_by_key(|(_, taken)| taken.median());
    slowest.context("no GPUs were found")
}

fn time(topology: &Topology, available: &[&str], size: usize) -> Result<Samples> {
    let mut taken = Samples::default();
    for _ in 0..RUNS {
        let policy = Policy::Aligned;
        let request = Request { available, required: &[], near: &[], size, policy };
        let begun = Instant::now();
        black_box(choose(topology, black_box(request))?);
        taken.push(begun.elapsed());
    }
    Ok(taken)
}
