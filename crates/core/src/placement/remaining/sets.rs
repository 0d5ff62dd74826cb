//! The best division of what remains into pairs, into quads, into octets: what jobs of one size would get
//! together.

use super::SIZES;
use crate::placement::problem::Problem;

/// Sets of devices are bits: the members of a class side by side, one class after the other.
type Mask = u32;

/// What is known of each set of free devices.
#[derive(Debug)]
pub(super) struct Sets {
    /// The first bit of each class.
    offsets: Vec<usize>,
    /// The worth of all connections inside each set.
    inside: Vec<i64>,
    /// For each size the worth of the best division of each set, where it has been asked for.
    divided: [Vec<Option<i64>>; SIZES.len()],
}

// === impl Sets ===

impl Sets {
    pub(super) fn of(problem: &Problem, devices: usize) -> Self {
        let mut offsets = Vec::with_capacity(problem.classes.len());
        let mut class_of = Vec::with_capacity(devices);
        for (class, members) in problem.classes.iter().map(|class| class.members.len()).enumerate()
        {
            offsets.push(class_of.len());
            class_of.extend(std::iter::repeat_n(class, members));
        }
        let affinity = |a: Mask, b: Mask| {
            let class = |bit: Mask| class_of[bit as usize];
            problem.worth(class(a), class(b)).affinity()
        };
        let all = 1 << devices;
        let mut inside = vec![0; all];
        for mask in 1..all {
            let set = Mask::try_from(mask).expect("few devices");
            let (lowest, others) = (set.trailing_zeros(), set & (set - 1));
            let added: i64 = bits(others).map(|other| affinity(lowest, other)).sum();
            inside[mask] = inside[others as usize] + added;
        }
        Self { offsets, inside, divided: SIZES.map(|_| vec![None; all]) }
    }

    /// What remains after a choice of so many of each class is worth.
    pub(super) fn usefulness(&mut self, problem: &Problem, counts: &[usize]) -> i64 {
        let classes = problem.classes.iter().zip(counts).zip(&self.offsets);
        let left = classes
            .map(|((class, taken), offset)| ((1 << (class.members.len() - taken)) - 1) << offset);
        let left: Mask = left.sum();
        let sizes = SIZES.iter().enumerate();
        sizes.map(|(size, &(_, weight))| weight * self.best_division(size, left)).sum()
    }

    /// The worth of the best sets of one size that a set can be divided into, as many as it has.
    fn best_division(&mut self, size: usize, set: Mask) -> i64 {
        let devices = SIZES[size].0;
        if (set.count_ones() as usize) < devices {
            return 0;
        }
        if let Some(known) = self.divided[size][set as usize] {
            return known;
        }
        let (lowest, others) = (set & set.wrapping_neg(), set & (set - 1));
        // The lowest is in some set, or it is one of those that are left over.
        let is_left_over = !(set.count_ones() as usize).is_multiple_of(devices);
        let mut best = if is_left_over { self.best_division(size, others) } else { 0 };
        subsets(others, devices - 1, lowest, &mut |chosen| {
            let rest = self.best_division(size, set & !chosen);
            best = best.max(self.inside[chosen as usize] + rest);
        });
        self.divided[size][set as usize] = Some(best);
        best
    }
}

/// Calls back with each subset that has so many of these bits, and those that are given.
fn subsets(of: Mask, size: usize, with: Mask, each: &mut impl FnMut(Mask)) {
    if size == 0 {
        return each(with);
    }
    let mut rest = of;
    while rest.count_ones() as usize >= size {
        let lowest = rest & rest.wrapping_neg();
        rest &= rest - 1;
        subsets(rest, size - 1, with | lowest, each);
    }
}

/// The bits that are set.
fn bits(mut of: Mask) -> impl Iterator<Item = Mask> {
    std::iter::from_fn(move || {
        let lowest = (of > 0).then(|| of.trailing_zeros())?;
        of &= of - 1;
        Some(lowest)
    })
}
