//! Allocations of jobs under each strategy, over thousands of random sequences.

use windlass_core::{placement::affinity, topology::Connection};

use super::{
    machines::Machine,
    pairs::{PairValues, lowest_bits},
    random::Random,
    strategies::{Aligned, FirstFit, NvidiaBestEffort, RandomChoice, Strategy},
    workload::{ARRIVALS, Event, SIZES, Sequence},
};

/// Seed of all random numbers.
const SEED: u64 = 4;

/// Mean result of the jobs under one strategy; 1 is the best.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct JobScore {
    /// Value of a job's connections, relative to an empty machine.
    pub(crate) connections: f64,
    /// Share of the jobs with a set as good as on an empty machine.
    pub(crate) optimal: f64,
    /// Value of a job's worst connection, relative to an empty machine.
    pub(crate) worst: f64,
    /// PCIe proximity of a job's devices, relative to an empty machine.
    pub(crate) pcie_proximity: f64,
}

/// Selector of one figure of a score.
pub(crate) type Figure = fn(&JobScore) -> f64;

/// Sums over the jobs.
#[derive(Debug, Default)]
struct ScoreSum {
    jobs: u32,
    sum: JobScore,
}

/// Result of a machine.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Share of the machine in use.
    pub(crate) load: f64,
    pub(crate) aligned: JobScore,
    /// `None` if NVIDIA's plugin ignores connections on this machine.
    pub(crate) best_effort: Option<JobScore>,
    pub(crate) first_fit: JobScore,
    pub(crate) random: JobScore,
}

/// Evaluates the sets of jobs.
struct Evaluator {
    pairs: PairValues,
    /// Values of the same pairs by PCIe alone.
    pcie_pairs: PairValues,
    /// Value on an empty machine, by the base-2 logarithm of the job's size. `None` without connections, or if the
    /// job does not fit.
    reference: [Option<SetValue>; SIZES.len()],
}

/// Value of a set's connections.
#[derive(Clone, Copy, Debug)]
struct SetValue {
    total: i64,
    worst: i64,
    pcie_proximity: i64,
}

/// Simulates this number of sequences on a machine, each with every strategy.
pub(crate) fn simulate(machine: &Machine, sequences: usize) -> Outcome {
    let devices = machine.pool.len();
    let mut random = Random::new(SEED);
    let random_sequences = (0..sequences).map(|_| Sequence::random(&mut random, devices));
    let random_sequences: Vec<_> = random_sequences.collect();
    let busy = random_sequences.iter().map(|sequence| sequence.busy_devices).sum();
    let evaluator = Evaluator::of(machine);
    let mean = |strategy: &mut dyn Strategy| evaluator.mean(&random_sequences, strategy);
    let mut best_effort = NvidiaBestEffort::on(machine, &SIZES.map(|(size, _)| size));
    Outcome {
        load: ratio(busy, sequences * ARRIVALS * devices),
        aligned: mean(&mut Aligned::on(machine)),
        best_effort: best_effort.as_mut().map(|best_effort| mean(best_effort)),
        first_fit: mean(&mut FirstFit),
        random: mean(&mut RandomChoice(Random::new(SEED))),
    }
}

fn ratio<N: TryInto<u32>>(part: N, total: N) -> f64 {
    let [part, total] =
        [part, total].map(|number| number.try_into().ok().map_or(f64::NAN, f64::from));
    part / total
}

// === impl Evaluator ===

impl Evaluator {
    fn of(machine: &Machine) -> Self {
        let pairs = PairValues::from_machine(machine, affinity);
        let unlinked = |connection| Connection { nvlink: None, xgmi_mbps: None, ..connection };
        let pcie_pairs =
            PairValues::from_machine(machine, |connection| affinity(unlinked(connection)));
        let devices = pairs.devices();
        let mut aligned = Aligned::on(machine);
        let reference = SIZES.map(|(size, _)| {
            (size > 1 && size <= devices).then(|| {
                let set = aligned.choose(lowest_bits(devices), size);
                SetValue {
                    total: pairs.sum(set),
                    worst: pairs.min(set),
                    pcie_proximity: pcie_pairs.sum(set),
                }
            })
        });
        Self { pairs, pcie_pairs, reference }
    }

    /// Mean result of jobs with several devices under a strategy.
    fn mean(&self, sequences: &[Sequence], strategy: &mut dyn Strategy) -> JobScore {
        let mut tally = ScoreSum::default();
        for sequence in sequences {
            self.run_sequence(sequence, strategy, &mut tally);
        }
        tally.mean()
    }

    fn run_sequence(&self, sequence: &Sequence, strategy: &mut dyn Strategy, tally: &mut ScoreSum) {
        let mut free = lowest_bits(self.pairs.devices());
        let mut sets = [0; ARRIVALS];
        for event in &sequence.events {
            match *event {
                Event::Release { job } => free |= sets[job],
                Event::Allocate { job, size } => {
                    sets[job] = strategy.choose(free, size);
                    free &= !sets[job];
                    tally.add(self.evaluate(sets[job]));
                }
            }
        }
    }

    /// Value of a job's set; `None` without connections.
    fn evaluate(&self, set: u64) -> Option<JobScore> {
        let reference = self.reference[set.count_ones().ilog2() as usize]?;
        let total = self.pairs.sum(set);
        Some(JobScore {
            connections: ratio(total, reference.total),
            optimal: f64::from(total == reference.total),
            worst: ratio(self.pairs.min(set), reference.worst),
            pcie_proximity: ratio(self.pcie_pairs.sum(set), reference.pcie_proximity),
        })
    }
}

// === impl ScoreSum ===

impl ScoreSum {
    fn add(&mut self, score: Option<JobScore>) {
        let Some(score) = score else { return };
        self.jobs += 1;
        self.sum.connections += score.connections;
        self.sum.optimal += score.optimal;
        self.sum.worst += score.worst;
        self.sum.pcie_proximity += score.pcie_proximity;
    }

    fn mean(self) -> JobScore {
        let of_jobs = |sum: f64| sum / f64::from(self.jobs);
        JobScore {
            connections: of_jobs(self.sum.connections),
            optimal: of_jobs(self.sum.optimal),
            worst: of_jobs(self.sum.worst),
            pcie_proximity: of_jobs(self.sum.pcie_proximity),
        }
    }
}
