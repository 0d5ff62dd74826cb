//! The placement solver alone: the worst of all sizes.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use windlass_core::{
    device::{Device, DeviceKind},
    placement::{Request, choose},
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
    Ok(rows)
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
    let available: Vec<_> = devices.iter().collect();
    let measured = (1..=devices.len()).map(|size| Ok((size, time(&available, size)?)));
    let measured: Vec<_> = measured.collect::<Result<_>>()?;
    let slowest = measured.into_iter().max_by_key(|(_, taken)| taken.median());
    slowest.context("no GPUs were found")
}

fn time(available: &[&Device], size: usize) -> Result<Samples> {
    let mut taken = Samples::default();
    for _ in 0..RUNS {
        let begun = Instant::now();
        black_box(choose(black_box(Request { available, required: &[], size }))?);
        taken.push(begun.elapsed());
    }
    Ok(taken)
}
