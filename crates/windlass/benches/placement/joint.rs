//! Time to choose GPUs together with NICs, for every size.

use std::{hint::black_box, time::Instant};

use anyhow::Result;
use windlass_core::{
    device::{Device, DeviceKind},
    placement::joint::{Alignment, DeviceRequest, JointRequest, choose_joint},
};

use crate::{machines::Machine, report::Row, samples::Samples};

/// Repetitions per request.
const RUNS: usize = 50;

/// Machines with joint requests for GPUs and NICs.
const MACHINES: [&str; 3] = ["dgx-1", "dgx-h100", "16-gpu"];

/// Measures requests for equal numbers of GPUs and NICs.
pub(crate) fn measure(machines: &[Machine]) -> Result<Vec<Row>> {
    machines.iter().filter(|machine| MACHINES.contains(&machine.name)).map(slowest).collect()
}

fn slowest(machine: &Machine) -> Result<Row> {
    let gpus = machine.ids();
    let is_nic = |device: &&Device| device.kind == DeviceKind::Nic;
    let nics = machine.devices.iter().filter(is_nic).map(|device| device.id.as_str());
    let nics: Vec<_> = nics.collect();
    let mut slowest = Samples::default();
    for size in 1..=gpus.len().min(nics.len()) {
        let samples = time(machine, (&gpus, &nics), size)?;
        if samples.median() > slowest.median() {
            slowest = samples;
        }
    }
    let label = format!("{}: {} GPUs with {} NICs", machine.name, gpus.len(), nics.len());
    Ok(Row::with_samples(label, &slowest)
        .with_comparison("equal numbers of both, the slowest size"))
}

fn time(machine: &Machine, (gpus, nics): (&[&str], &[&str]), size: usize) -> Result<Samples> {
    let request = JointRequest {
        gpus: DeviceRequest { available: gpus, required: &[], size },
        nics: DeviceRequest { available: nics, required: &[], size },
        alignment: Alignment::Preferred,
    };
    let mut samples = Samples::default();
    for _ in 0..RUNS {
        let started = Instant::now();
        black_box(choose_joint(&machine.topology, black_box(request))?);
        samples.push(started.elapsed());
    }
    Ok(samples)
}
