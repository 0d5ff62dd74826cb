//! Best division of the remaining devices into pairs, quads and octets.

use super::SIZES;
use crate::placement::problem::Problem;

/// Set of devices as bits; members of a class are adjacent.
type Mask = u32;

/// Affinities of every set of free devices.
#[derive(Debug)]
pub(super) struct Sets {
    /// First bit of each class.
    offsets: Vec<usize>,
    /// Affinity inside each set.
    inner_affinity: Vec<i64>,
    /// Memoised affinity of the best division of each set, per size.
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
            problem.affinity(class(a), class(b)).by_data()
        };
        let all = 1 << devices;
        let mut inner_affinity = vec![0; all];
        for mask in 1..all {
            let set = Mask::try_from(mask).expect("few devices");
            let (lowest, others) = (set.trailing_zeros(), set & (set - 1));
            let added: i64 = bits(others).map(|other| affinity(lowest, other)).sum();
            inner_affinity[mask] = inner_affinity[others as usize] + added;
        }
        Self { offsets, inner_affinity, divided: SIZES.map(|_| vec![None; all]) }
    }

    /// Usefulness of the devices that remain after taking `counts` of each class.
    pub(super) fn usefulness(&mut self, problem: &Problem, counts: &[usize]) -> i64 {
        let classes = problem.classes.iter().zip(counts).zip(&self.offsets);
        let remaining = classes
            .map(|((class, taken), offset)| ((1 << (class.members.len() - taken)) - 1) << offset);
        let remaining: Mask = remaining.sum();
        let sizes = SIZES.iter().enumerate();
        sizes.map(|(size, &(_, weight))| weight * self.best_division(size, remaining)).sum()
    }

    /// Affinity of the best division of a set into as many sets of one size as fit.
    fn best_division(&mut self, size: usize, set: Mask) -> i64 {
        let devices = SIZES[size].0;
        if (set.count_ones() as usize) < devices {
            return 0;
        }
        if let Some(affinity) = self.divided[size][set as usize] {
            return affinity;
        }
        let (lowest, others) = (set & set.wrapping_neg(), set & (set - 1));
        // The lowest device is in some set or left over.
        let is_left_over = !(set.count_ones() as usize).is_multiple_of(devices);
        let mut best = if is_left_over { self.best_division(size, others) } else { 0 };
        subsets(others, devices - 1, lowest, &mut |chosen| {
            let rest = self.best_division(size, set & !chosen);
            best = best.max(self.inner_affinity[chosen as usize] + rest);
        });
        self.divided[size][set as usize] = Some(best);
        best
    }
}

/// Calls `each` with every subset of `size` of these bits, joined with `with`.
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

/// Positions of the set bits.
fn bits(mut of: Mask) -> impl Iterator<Item = Mask> {
    std::iter::from_fn(move || {
        let lowest = (of > 0).then(|| of.trailing_zeros())?;
        of &= of - 1;
        Some(lowest)
    })
}
