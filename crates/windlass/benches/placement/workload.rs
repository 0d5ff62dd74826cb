//! Jobs that come and go by lot, the same for every strategy.

use super::random::Random;

/// Sizes of jobs, and how many of ten have each.
pub(crate) const SIZES: [(usize, usize); 4] = [(1, 4), (2, 3), (4, 2), (8, 1)];

/// Number of jobs per sequence.
pub(crate) const ARRIVALS: usize = 60;

/// Something that happens to a node.
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
    pub(crate) busy: usize,
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
    /// At each step a job asks. One that is larger than what is free goes elsewhere, so that what runs
    /// does not depend on who chooses.
    pub(crate) fn random(random: &mut Random, devices: usize) -> Self {
        let mut sequence = Self::default();
        let mut running: Vec<Job> = Vec::new();
        for step in 0..ARRIVALS {
            for job in running.extract_if(.., |job| job.end_step <= step) {
                sequence.events.push(Event::Release { job: job.id });
            }
            let size = size(random);
            let until = step + 1 + random.below(longest(devices));
            let busy: usize = running.iter().map(|job| job.size).sum();
            if busy + size <= devices {
                sequence.events.push(Event::Allocate { job: step, size });
                running.push(Job { id: step, size, end_step: until });
            }
            sequence.busy += running.iter().map(|job| job.size).sum::<usize>();
        }
        sequence
    }
}

/// So long that two thirds of the devices are in use, jobs that go elsewhere considered: measured.
fn longest(devices: usize) -> usize {
    (devices * 7 + 4) / 10
}

fn size(random: &mut Random) -> usize {
    let mut drawn = random.below(SIZES.iter().map(|(_, weight)| weight).sum());
    for (size, weight) in SIZES {
        if drawn < weight {
            return size;
        }
        drawn -= weight;
    }
    1
}
