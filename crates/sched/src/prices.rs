//! Prices of fractions of a GPU, and the loss of value that a share causes on the GPU that serves it.
//!
//! Packing shares into GPUs is a cutting-stock problem: which patterns of shares fill the fewest GPUs? The dual of its
//! linear relaxation gives each size a price, such that no pattern is worth more than one GPU. The value of a remainder
//! of a GPU is that of the most valuable pattern that fits into it. A share of size `s` on a GPU with `r` left loses
//! `value(r) - value(r - s) - value(s)`: its *regret*, zero if no value is lost.

use crate::{forecast::RequestCount, gpu::WHOLE_MILLI, request::Gpus};

/// Thousandths of a whole GPU.
const WHOLE: usize = WHOLE_MILLI as usize;
/// Maximum number of sizes with a price. The most frequent sizes are kept.
const MAX_SIZES: usize = 64;
/// The simplex method ends once no pattern is worth more than one GPU plus this tolerance.
const TOLERANCE: f64 = 1e-9;

/// Value of each remainder of a GPU, from 0 to 1 GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Prices {
    value: [f64; WHOLE + 1],
}

impl Default for Prices {
    /// Prices without counted shares: only a whole GPU has a value.
    fn default() -> Self {
        let mut value = [0.0; WHOLE + 1];
        value[WHOLE] = 1.0;
        Self { value }
    }
}

impl Prices {
    /// Prices for the counted shares.
    pub fn of(counts: &[RequestCount]) -> Self {
        let sizes = sizes(counts);
        if sizes.is_empty() {
            return Self::default();
        }
        let duals = duals(&sizes);
        let mut value = [0.0; WHOLE + 1];
        for remainder in 1..=WHOLE {
            let best = sizes.iter().zip(&duals).filter(|(size, _)| size.milli <= remainder);
            let best = best.map(|(size, price)| value[remainder - size.milli] + price);
            value[remainder] = best.fold(value[remainder - 1], f64::max);
        }
        Self { value }
    }

    /// Value, in GPUs, that is lost when a share is allocated from a GPU with `free_milli` free; never negative.
    pub fn regret(&self, free_milli: u16, share_milli: u16) -> f64 {
        let value = |milli: u16| self.value[usize::from(milli).min(WHOLE)];
        let after = free_milli.saturating_sub(share_milli);
        (value(free_milli) - value(after) - value(share_milli)).max(0.0)
    }
}

/// Shares of one size.
struct Size {
    milli: usize,
    count: f64,
}

/// The most frequent sizes of shares, largest first.
fn sizes(request_counts: &[RequestCount]) -> Vec<Size> {
    let mut counts = [0.0; WHOLE + 1];
    for request_count in request_counts {
        if let Gpus::Share { count: gpus @ 1.., .. } = request_count.request.gpus {
            let milli = request_count.gpu_milli / u32::from(gpus);
            counts[(milli as usize).min(WHOLE)] += request_count.pods * f64::from(gpus);
        }
    }
    let mut sizes: Vec<_> = (1..=WHOLE).filter(|milli| counts[*milli] > 0.0).collect();
    sizes.sort_by(|a, b| counts[*b].total_cmp(&counts[*a]));
    sizes.truncate(MAX_SIZES);
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let size = |milli: usize| Size { milli, count: counts[milli] };
    sizes.into_iter().map(size).collect()
}

/// Dual prices of the relaxed cutting-stock problem, by the revised simplex with columns generated as needed
/// (Gilmore and Gomory, "A Linear Programming Approach to the Cutting-Stock Problem", 1961).
fn duals(sizes: &[Size]) -> Vec<f64> {
    let rows = sizes.len();
    // The first basis fills a GPU with one size each.
    let mut inverse = vec![vec![0.0; rows]; rows];
    let mut usage = vec![0.0; rows];
    for (row, size) in sizes.iter().enumerate() {
        inverse[row][row] = 1.0 / copies(WHOLE / size.milli);
        usage[row] = size.count * inverse[row][row];
    }
    // Each pattern costs one GPU, so the prices are the column sums of the inverse basis.
    let prices = |inverse: &[Vec<f64>]| -> Vec<f64> {
        (0..rows).map(|column| inverse.iter().map(|row| row[column]).sum()).collect()
    };
    // A few iterations per size suffice. The bound only prevents endless cycles.
    for _ in 0..50 * rows {
        let current = prices(&inverse);
        let (worth, pattern) = best_pattern(sizes, &current);
        if worth <= 1.0 + TOLERANCE {
            break;
        }
        let entering: Vec<f64> =
            inverse.iter().map(|row| row.iter().zip(&pattern).map(|(a, b)| a * b).sum()).collect();
        let ratio = |row: usize| usage[row] / entering[row];
        let leaving = (0..rows).filter(|row| entering[*row] > TOLERANCE);
        let Some(leaving) = leaving.min_by(|a, b| ratio(*a).total_cmp(&ratio(*b))) else { break };
        let pivot = ratio(leaving);
        let pivot_row: Vec<f64> =
            inverse[leaving].iter().map(|it| it / entering[leaving]).collect();
        for row in (0..rows).filter(|row| *row != leaving) {
            usage[row] -= pivot * entering[row];
            for (cell, pivot_cell) in inverse[row].iter_mut().zip(&pivot_row) {
                *cell -= entering[row] * pivot_cell;
            }
        }
        usage[leaving] = pivot;
        inverse[leaving] = pivot_row;
    }
    prices(&inverse).into_iter().map(|price| price.max(0.0)).collect()
}

/// The most valuable pattern of a GPU at these prices: its worth, and the number of shares of each size.
fn best_pattern(sizes: &[Size], prices: &[f64]) -> (f64, Vec<f64>) {
    let mut worth = [0.0; WHOLE + 1];
    let mut last_size: [Option<usize>; WHOLE + 1] = [None; WHOLE + 1];
    for remainder in 1..=WHOLE {
        worth[remainder] = worth[remainder - 1];
        for (position, size) in sizes.iter().enumerate().filter(|(_, size)| size.milli <= remainder)
        {
            let candidate = worth[remainder - size.milli] + prices[position];
            if candidate > worth[remainder] + TOLERANCE / 2.0 {
                worth[remainder] = candidate;
                last_size[remainder] = Some(position);
            }
        }
    }
    let mut pattern = vec![0.0; sizes.len()];
    let mut remainder = WHOLE;
    while remainder > 0 {
        match last_size[remainder] {
            Some(position) => {
                pattern[position] += 1.0;
                remainder -= sizes[position].milli;
            }
            None => remainder -= 1,
        }
    }
    (worth[WHOLE], pattern)
}

#[expect(clippy::cast_precision_loss, reason = "at most a thousand")]
fn copies(count: usize) -> f64 {
    count as f64
}
