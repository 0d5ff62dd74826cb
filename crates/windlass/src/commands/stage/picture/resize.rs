//! Resizes a picture with a triangle filter that is as wide as the reduction: bilinear, without aliasing.
//!
//! It filters rows, then columns, and rounds to 8 bits each time. Weights have 22 bits as in Pillow, so that a model
//! trained on pictures of `Image.resize(size, BILINEAR)` gets the same pixels.

use super::ppm::COLOURS;
use crate::cli::PictureSize;

/// Weights of the source pixels along a line that form one target pixel. They sum to `ONE`, except for rounding.
struct Blend {
    first: usize,
    weights: Vec<u32>,
}

/// Bits of a weight. With the 8 bits of a colour they leave two bits of a `u32` sum.
const WEIGHT_BITS: u32 = 22;

/// Sum of the weights of a pixel, except for rounding.
const ONE: u64 = 1 << WEIGHT_BITS;

/// Initial value of a sum, which rounds it.
const HALF: u32 = 1 << (WEIGHT_BITS - 1);

/// Writes the pixels of size `to` into `resized`.
pub(super) fn resize(pixels: &[u8], from: PictureSize, to: PictureSize, resized: &mut [u8]) {
    let columns = blends(from.width, to.width);
    let row_bytes = to.width as usize * COLOURS;
    let mut narrow = vec![0; from.height as usize * row_bytes];
    let rows = pixels.chunks_exact(from.width as usize * COLOURS);
    for (row, target) in rows.zip(narrow.chunks_exact_mut(row_bytes)) {
        resize_row(row, &columns, target);
    }

    let mut sums = vec![0; row_bytes];
    for (blend, target) in
        blends(from.height, to.height).iter().zip(resized.chunks_exact_mut(row_bytes))
    {
        blend_rows(&narrow, blend, &mut sums, target);
    }
}

/// Resizes a row to another width.
fn resize_row(row: &[u8], columns: &[Blend], target: &mut [u8]) {
    for (Blend { first, weights }, target) in columns.iter().zip(target.chunks_exact_mut(COLOURS)) {
        let pixels = row[first * COLOURS..].chunks_exact(COLOURS);
        let [mut red, mut green, mut blue] = [HALF; COLOURS];
        for (pixel, weight) in pixels.zip(weights) {
            red += u32::from(pixel[0]) * weight;
            green += u32::from(pixel[1]) * weight;
            blue += u32::from(pixel[2]) * weight;
        }
        target.copy_from_slice(&[red, green, blue].map(to_colour));
    }
}

/// Writes a row that blends several rows.
fn blend_rows(rows: &[u8], blend: &Blend, sums: &mut [u32], target: &mut [u8]) {
    sums.fill(HALF);
    let rows = rows.chunks_exact(target.len()).skip(blend.first);
    for (row, weight) in rows.zip(&blend.weights) {
        for (sum, colour) in sums.iter_mut().zip(row) {
            *sum += u32::from(*colour) * weight;
        }
    }
    for (target, sum) in target.iter_mut().zip(sums) {
        *target = to_colour(*sum);
    }
}

/// Converts a sum, which began at `HALF`, to a colour.
fn to_colour(sum: u32) -> u8 {
    u8::try_from(sum >> WEIGHT_BITS).unwrap_or(u8::MAX)
}

/// Blends of a line of `to` pixels from a line of `from` pixels. Distances are integers, in units of the line's length
/// divided by `2 * from * to`: the centre of source pixel `i` is at `(2i + 1) * to`.
fn blends(from: u32, to: u32) -> Vec<Blend> {
    let (from, to) = (u64::from(from), u64::from(to));
    let reach = 2 * from.max(to);
    (0..to)
        .map(|target| {
            let centre = (2 * target + 1) * from;
            let weight = |source: u64| reach.saturating_sub(centre.abs_diff((2 * source + 1) * to));
            let first = (centre.saturating_sub(reach) / (2 * to)).min(from - 1);
            let first = (first..from).find(|&source| weight(source) > 0).unwrap_or(first);
            let weights: Vec<_> =
                (first..from).map(weight).take_while(|&weight| weight > 0).collect();
            let sum: u64 = weights.iter().sum();
            let part = |weight: u64| u32::try_from((weight * ONE + sum / 2) / sum);
            let weights =
                weights.into_iter().map(|weight| part(weight).expect("a weight is at most ONE"));
            let first = usize::try_from(first).expect("a pixel of a line in memory");
            Blend { first, weights: weights.collect() }
        })
        .collect()
}
