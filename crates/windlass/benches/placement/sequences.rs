//! Allocations of jobs under each strategy, over thousands of random sequences.

use windlass_core::{placement::affinity, topology::Connection};

use super::{
    machines::Machine,
    pairs::{Pairs, first},
    random::Random,
    strategies::{Aligned, Any, FirstFit, Rival, Strategy},
    workload::{ARRIVALS, Event, SIZES, Sequence},
};

/// Where all numbers that are drawn begin.
const SEED: u64 = 4;

/// Mean result of the jobs under one strategy; 1 is the best.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Got {
    /// The worth of a job's connections, of what it would be on an empty machine.
    pub(crate) connections: f64,
    /// Jobs that got a set as good as on an empty machine.
    pub(crate) as_good: f64,
    /// The worth of a job's worst connection, of what it would be on an empty machine.
    pub(crate) worst: f64,
    /// PCIe proximity of a job's devices, relative to an empty machine.
    pub(crate) seats: f64,
}

/// One of them.
pub(crate) type Figure = fn(&Got) -> f64;

/// Sums over the jobs.
#[derive(Debug, Default)]
struct Tally {
    jobs: u32,
    sum: Got,
}

/// Result of a machine.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Share of the machine in use.
    pub(crate) load: f64,
    pub(crate) aligned: Got,
    /// `None` where NVIDIA's plugin does not look at connections.
    pub(crate) best_effort: Option<Got>,
    pub(crate) first_fit: Got,
    pub(crate) random: Got,
}

/// Judges the sets that jobs get.
struct Judge {
    pairs: Pairs,
    /// The same pairs by PCIe alone.
    seats: Pairs,
    /// Value on an empty machine, by the base-2 logarithm of the job's size. `None` without connections, or if the
    /// job does not fit.
    best: [Option<Worth>; SIZES.len()],
}

/// Value of a set's connections.
#[derive(Clone, Copy, Debug)]
struct Worth {
    all: i64,
    worst: i64,
    seats: i64,
}

/// Plays so many sequences on a machine, each with every strategy.
pub(crate) fn play(machine: &Machine, sequences: usize) -> Outcome {
    let devices = machine.pool.len();
    let mut random = Random::new(SEED);
    let drawn = (0..sequences).map(|_| Sequence::drawn(&mut random, devices));
    let drawn: Vec<_> = drawn.collect();
    let busy = drawn.iter().map(|sequence| sequence.busy).sum();
    let judge = Judge::of(machine);
    let mean = |strategy: &mut dyn Strategy| judge.mean(&drawn, strategy);
    let mut rival = Rival::on(machine, &SIZES.map(|(size, _)| size));
    Outcome {
        load: share(busy, sequences * ARRIVALS * devices),
        aligned: mean(&mut Aligned::on(machine)),
        best_effort: rival.as_mut().map(|rival| mean(rival)),
        first_fit: mean(&mut FirstFit),
        random: mean(&mut Any(Random::new(SEED))),
    }
}

fn share<N: TryInto<u32>>(part: N, of: N) -> f64 {
    let [part, of] = [part, of].map(|number| number.try_into().ok().map_or(f64::NAN, f64::from));
    part / of
}

// === impl Judge ===

impl Judge {
    fn of(machine: &Machine) -> Self {
        let pairs = Pairs::of(machine, affinity);
        let unlinked = |of| Connection { nvlink: None, xgmi_mbps: None, ..of };
        let seats = Pairs::of(machine, |connection| affinity(unlinked(connection)));
        let devices = pairs.devices();
        let mut aligned = Aligned::on(machine);
        let best = SIZES.map(|(size, _)| {
            (size > 1 && size <= devices).then(|| {
                let set = aligned.choose(first(devices), size);
                Worth { all: pairs.sum(set), worst: pairs.least(set), seats: seats.sum(set) }
            })
        });
        Self { pairs, seats, best }
    }

    /// Mean result of jobs with several devices under a strategy.
    fn mean(&self, sequences: &[Sequence], strategy: &mut dyn Strategy) -> Got {
        let mut tally = Tally::default();
        for sequence in sequences {
            self.play(sequence, strategy, &mut tally);
        }
        tally.mean()
    }

    fn play(&self, sequence: &Sequence, strategy: &mut dyn Strategy, tally: &mut Tally) {
        let mut free = first(self.pairs.devices());
        let mut held = [0; ARRIVALS];
        for event in &sequence.events {
            match *event {
                Event::Ends { job } => free |= held[job],
                Event::Begins { job, size } => {
                    held[job] = strategy.choose(free, size);
                    free &= !held[job];
                    tally.add(self.judge(held[job]));
                }
            }
        }
    }

    /// Value of a job's set; `None` without connections.
    fn judge(&self, set: u64) -> Option<Got> {
        let best = self.best[set.count_ones().ilog2() as usize]?;
        let all = self.pairs.sum(set);
        Some(Got {
            connections: share(all, best.all),
            as_good: f64::from(all == best.all),
            worst: share(self.pairs.least(set), best.worst),
            seats: share(self.seats.sum(set), best.seats),
        })
    }
}

// === impl Tally ===

impl Tally {
    fn add(&mut self, got: Option<Got>) {
        let Some(got) = got else { return };
        self.jobs += 1;
        self.sum.connections += got.connections;
        self.sum.as_good += got.as_good;
        self.sum.worst += got.worst;
        self.sum.seats += got.seats;
    }

    fn mean(self) -> Got {
        let of_jobs = |sum: f64| sum / f64::from(self.jobs);
        Got {
            connections: of_jobs(self.sum.connections),
            as_good: of_jobs(self.sum.as_good),
            worst: of_jobs(self.sum.worst),
            seats: of_jobs(self.sum.seats),
        }
    }
}
