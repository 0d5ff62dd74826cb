//! Time of the solver: every size on machines of 4 to 64 devices, with all or some of them free.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use windlass_core::placement::{Policy, Request, Topology, choose};

use crate::{
    by_hand, joint,
    machines::Machine,
    pairs::{bit_indices, lowest_bits},
    random::Random,
    replicas,
    report::Row,
    samples::Samples,
};

/// Repetitions per request.
const RUNS: usize = 200;

/// Number of random requests for some of the devices, and repetitions of each.
const RANDOM_REQUESTS: usize = 300;
const RANDOM_REQUEST_RUNS: usize = 5;

/// Budget of the slowest request, by number of devices.
const BUDGETS: [(usize, Duration); 2] =
    [(8, Duration::from_micros(100)), (64, Duration::from_millis(2))];

/// Machines with a row for each size, and the number of their free devices.
const BY_SIZE: [(&str, usize); 3] = [("dgx-1", 4), ("dgx-1", 8), ("16-gpu", 16)];

/// The policies that search among all devices; the others evaluate fewer sets.
const POLICIES: [Policy; 3] = [Policy::Aligned, Policy::Packed, Policy::Distributed];

/// A question about a machine.
#[derive(Clone, Copy, Debug)]
struct SolverRequest<'a> {
    machine: &'a Machine,
    free: u64,
    size: usize,
    policy: Policy,
}

/// Measures every machine, and one with random links.
pub(crate) fn measure(machines: &[Machine]) -> Result<Vec<Row>> {
    let with_random_links = by_hand::with_random_links(1);
    let all_machines = || machines.iter().chain([&with_random_links]);
    let first_machine = machines.first().context("there is no machine")?;
    let mut rows = vec![every_size(first_machine, 4)?];
    for machine in all_machines() {
        rows.extend([every_size(machine, machine.pool.len())?, random_requests(machine)?]);
    }
    for (name, devices) in BY_SIZE {
        let machine = machines.iter().find(|machine| machine.name == name);
        rows.extend(each_size(machine.context("no such machine")?, devices)?);
    }
    rows.push(replicas::measure(machines)?);
    rows.extend(joint::measure(machines)?);
    rows.extend(all_machines().map(topology));
    Ok(rows)
}

/// One row for each size, with the default policy.
fn each_size(machine: &Machine, devices: usize) -> Result<Vec<Row>> {
    let row = |size| {
        let question =
            SolverRequest { machine, free: lowest_bits(devices), size, policy: Policy::Aligned };
        let samples = question.time(RUNS)?;
        let label = format!("{}: {size} of {devices}", machine.name);
        Ok(Row::with_samples(label, &samples).with_comparison("aligned"))
    };
    (1..=devices).map(row).collect()
}

/// The slowest size and policy while the first `devices` devices are free.
fn every_size(machine: &Machine, devices: usize) -> Result<Row> {
    let free = lowest_bits(devices);
    let of_size = |size| POLICIES.map(|policy| SolverRequest { machine, free, size, policy });
    let measured = (1..=devices).flat_map(of_size);
    let measured = measured.map(|question| Ok((question, question.time(RUNS)?)));
    let measured: Vec<_> = measured.collect::<Result<_>>()?;
    let slowest = measured.iter().max_by_key(|(_, samples)| samples.median());
    let (question, samples) = slowest.context("no devices were found")?;
    let row =
        Row::with_samples(format!("{}: {} of {devices}", machine.name, question.size), samples);
    let row = row.with_comparison(format!("the slowest size, {}", question.policy));
    Ok(row.with_time_budget(samples.median(), budget(devices)))
}

/// Random requests while some devices are free. The budget applies to the slowest of them.
fn random_requests(machine: &Machine) -> Result<Row> {
    let devices = machine.pool.len();
    let mut random = Random::new(1);
    let mut medians = Samples::default();
    for _ in 0..RANDOM_REQUESTS {
        let count = 1 + random.below(devices);
        let free = random.random_subset(lowest_bits(devices), count);
        let size = 1 + random.below(count);
        let policy = POLICIES[random.below(POLICIES.len())];
        medians.push(
            SolverRequest { machine, free, size, policy }.time(RANDOM_REQUEST_RUNS)?.median(),
        );
    }
    let row = Row::with_samples(
        format!("{}: random requests, {devices} devices", machine.name),
        &medians,
    );
    let row = row.with_comparison(format!("{RANDOM_REQUESTS} requests; budget for p99"));
    Ok(row.with_time_budget(medians.p99(), budget(devices)))
}

fn budget(devices: usize) -> Duration {
    let matching = BUDGETS.iter().find(|(max_devices, _)| devices <= *max_devices);
    matching.map_or(Duration::MAX, |(_, limit)| *limit)
}

fn topology(machine: &Machine) -> Row {
    let mut samples = Samples::default();
    for _ in 0..RUNS / 4 {
        let started = Instant::now();
        black_box(Topology::from_devices(black_box(&machine.devices)));
        samples.push(started.elapsed());
    }
    let label = format!("{}: topology of {} devices", machine.name, machine.devices.len());
    Row::with_samples(label, &samples).with_comparison("once for each inventory")
}

// === impl SolverRequest ===

impl SolverRequest<'_> {
    fn time(self, runs: usize) -> Result<Samples> {
        let ids = self.machine.ids();
        let available: Vec<_> = bit_indices(self.free).map(|position| ids[position]).collect();
        let Self { size, policy, .. } = self;
        let request = Request { available: &available, required: &[], near: &[], size, policy };
        let mut samples = Samples::default();
        for _ in 0..runs {
            let started = Instant::now();
            black_box(choose(&self.machine.topology, black_box(request))?);
            samples.push(started.elapsed());
        }
        Ok(samples)
    }
}
