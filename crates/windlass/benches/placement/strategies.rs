//! Strategies of allocation: Windlass, NVIDIA's best-effort policy, first fit, and random.

use std::collections::HashMap;

use windlass_core::placement::{self, Policy, Request};

use super::{best_effort::BestEffort, machines::Machine, pairs::bit_indices, random::Random};

/// Chooses `size` of the free devices, of which there are at least as many.
pub(crate) trait Strategy {
    fn choose(&mut self, free: u64, size: usize) -> u64;
}

/// Answers of Windlass. Equal requests have equal answers, so each is computed once.
#[derive(Debug)]
pub(crate) struct Aligned<'a> {
    machine: &'a Machine,
    ids: Vec<&'a str>,
    answers: HashMap<(u64, usize), u64>,
}

/// Answers of NVIDIA's plugin, by size.
#[derive(Debug)]
pub(crate) struct NvidiaBestEffort(HashMap<usize, BestEffort>);

/// Chooses the lowest free devices.
#[derive(Debug)]
pub(crate) struct FirstFit;

/// Chooses random devices.
#[derive(Debug)]
pub(crate) struct RandomChoice(pub(crate) Random);

// === impl Aligned ===

impl<'a> Aligned<'a> {
    pub(crate) fn on(machine: &'a Machine) -> Self {
        Self { machine, ids: machine.ids(), answers: HashMap::new() }
    }

    fn compute(&self, free: u64, size: usize) -> u64 {
        let available: Vec<_> = bit_indices(free).map(|position| self.ids[position]).collect();
        let policy = Policy::Aligned;
        let request = Request { available: &available, required: &[], near: &[], size, policy };
        let choice = placement::choose(&self.machine.topology, request).expect("enough are free");
        let position = |id: &str| self.ids.iter().position(|pool_id| *pool_id == id);
        let positions =
            choice.devices.iter().map(|id| position(id.as_str()).expect("one of the pool"));
        positions.fold(0, |set, position| set | 1 << position)
    }
}

impl Strategy for Aligned<'_> {
    fn choose(&mut self, free: u64, size: usize) -> u64 {
        if let Some(&answer) = self.answers.get(&(free, size)) {
            return answer;
        }
        let answer = self.compute(free, size);
        self.answers.insert((free, size), answer);
        answer
    }
}

// === impl NvidiaBestEffort ===

impl NvidiaBestEffort {
    /// `None` if NVIDIA's plugin ignores connections on this machine.
    pub(crate) fn on(machine: &Machine, sizes: &[usize]) -> Option<Self> {
        let by_size =
            sizes.iter().map(|&size| Some((size, BestEffort::for_machine(machine, size)?)));
        by_size.collect::<Option<_>>().map(Self)
    }
}

impl Strategy for NvidiaBestEffort {
    fn choose(&mut self, free: u64, size: usize) -> u64 {
        self.0[&size].choose(free)
    }
}

impl Strategy for FirstFit {
    fn choose(&mut self, free: u64, size: usize) -> u64 {
        bit_indices(free).take(size).fold(0, |set, position| set | 1 << position)
    }
}

impl Strategy for RandomChoice {
    fn choose(&mut self, free: u64, size: usize) -> u64 {
        self.0.random_subset(free, size)
    }
}
