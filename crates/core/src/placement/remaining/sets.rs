//! Best division of the remaining devices into pairs, quads and octets.

use super::SIZES;
use crate::placement::problem::Problem;

/// Set of devices as bits. Interchangeable devices, which form a class of the problem, have adjacent bits.
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
            problem.affinity(class(a), class(b)).data_path()
        };
        let set_count = 1 << devices;
        let mut inner_affinity = vec![0; set_count];
        for mask in 1..set_count {
            let set = Mask::try_from(mask).expect("few devices");
            let (lowest, others) = (set.trailing_zeros(), set & (set - 1));
            let added: i64 = bits(others).map(|other| affinity(lowest, other)).sum();
            inner_affinity[mask] = inner_affinity[others as usize] + added;
        }
        Self { offsets, inner_affinity, divided: SIZES.map(|_| vec![None; set_count]) }
    }

    /// Usefulness of the devices that remain after taking `counts` of each class: the affinities of their best
    /// divisions into pairs, quads and octets, weighted by size.
    pub(super) fn usefulness(&mut self, problem: &Problem, counts: &[usize]) -> i64 {
        let classes = problem.classes.iter().zip(counts).zip(&self.offsets);
        let remaining = classes
            .map(|((class, taken), offset)| ((1 << (class.members.len() - taken)) - 1) << offset);
        let remaining: Mask = remaining.sum();
        let sizes = SIZES.iter().enumerate();
        sizes.map(|(index, &(_, weight))| weight * self.best_division(index, remaining)).sum()
    }

    /// Affinity of the best division of a set into as many sets of one size as fit. `size_index` is an index of
    /// [`SIZES`].
    fn best_division(&mut self, size_index: usize, set: Mask) -> i64 {
        let size = SIZES[size_index].0;
        if (set.count_ones() as usize) < size {
            return 0;
        }
        if let Some(affinity) = self.divided[size_index][set as usize] {
            return affinity;
        }
        let (lowest, others) = (set & set.wrapping_neg(), set & (set - 1));
        // The lowest device is in one of the sets, or it is left over.
        let has_left_over = !(set.count_ones() as usize).is_multiple_of(size);
        let mut best = if has_left_over { self.best_division(size_index, others) } else { 0 };
        subsets(others, size - 1, lowest, &mut |chosen| {
            let rest_affinity = self.best_division(size_index, set & !chosen);
            best = best.max(self.inner_affinity[chosen as usize] + rest_affinity);
        });
        self.divided[size_index][set as usize] = Some(best);
        best
    }
}

/// Calls `each` with every subset of `size` bits of `set`, together with the bits of `fixed`.
fn subsets(set: Mask, size: usize, fixed: Mask, each: &mut impl FnMut(Mask)) {
    if size == 0 {
        return each(fixed);
    }
    let mut rest = set;
    while rest.count_ones() as usize >= size {
        let lowest = rest & rest.wrapping_neg();
        rest &= rest - 1;
        subsets(rest, size - 1, fixed | lowest, each);
    }
}

/// Positions of the set bits.
fn bits(mut set: Mask) -> impl Iterator<Item = Mask> {
    std::iter::from_fn(move || {
        let lowest = (set > 0).then(|| set.trailing_zeros())?;
        set &= set - 1;
        Some(lowest)
    })
}
