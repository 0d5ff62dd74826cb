//! Random sequences of jobs, the same for every strategy.

use super::random::Random;

/// Sizes of jobs, each with its weight: the number of such jobs among ten.
pub(crate) const SIZES: [(usize, usize); 4] = [(1, 4), (2, 3), (4, 2), (8, 1)];

/// Number of jobs per sequence.
pub(crate) const ARRIVALS: usize = 60;

/// Event of a sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// A job gets devices.
    Allocate { job: usize, size: usize },
    /// A job gives its devices back.
    Release { job: usize },
}

/// Events on an initially empty node.
#[derive(Debug, Default)]
pub(crate) struct Sequence {
    pub(crate) events: Vec<Event>,
    /// Devices in use, summed up over the arrivals.
    pub(crate) busy_devices: usize,
}

/// A job that runs.
#[derive(Clone, Copy, Debug)]
struct Job {
    id: usize,
    size: usize,
    end_step: usize,
}

// === impl Sequence ===

impl Sequence {
    /// At each step a job arrives. A job that is larger than the number of free devices is skipped, so the running jobs
    /// do not depend on the strategy.
    pub(crate) fn random(random: &mut Random, devices: usize) -> Self {
        let mut sequence = Self::default();
        let mut running: Vec<Job> = Vec::new();
        for step in 0..ARRIVALS {
            for job in running.extract_if(.., |job| job.end_step <= step) {
                sequence.events.push(Event::Release { job: job.id });
            }
            let size = size(random);
            let end_step = step + 1 + random.below(max_duration(devices));
            let busy: usize = running.iter().map(|job| job.size).sum();
            if busy + size <= devices {
                sequence.events.push(Event::Allocate { job: step, size });
                running.push(Job { id: step, size, end_step });
            }
            sequence.busy_devices += running.iter().map(|job| job.size).sum::<usize>();
        }
        sequence
    }
}

/// Maximum duration of a job in steps. By measurement, two thirds of the devices are then in use.
fn max_duration(devices: usize) -> usize {
    (devices * 7 + 4) / 10
}

fn size(random: &mut Random) -> usize {
    let mut remaining_weight = random.below(SIZES.iter().map(|(_, weight)| weight).sum());
    for (size, weight) in SIZES {
        if remaining_weight < weight {
            return size;
        }
        remaining_weight -= weight;
    }
    1
}
