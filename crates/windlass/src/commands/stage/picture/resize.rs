//! Another size of a picture, by a triangle filter that is as wide as the reduction: bilinear, without aliasing.
//!
//! Rows first, then columns, each rounded to 8 bits. Weights have 22 bits, as Pillow's have, so that a model that was
//! trained on pictures of `Image.resize(size, BILINEAR)` sees the same ones.

use super::ppm::COLOURS;
use crate::cli::PictureSize;

/// Pixels along a line that make one pixel of the other size, with their parts of `ONE`.
struct Blend {
    first: usize,
    weights: Vec<u32>,
}

/// Bits of a weight; with 8 of a colour they leave a sum two bits.
const BITS: u32 = 22;

/// The sum of a pixel's weights, but for their rounding.
const ONE: u64 = 1 << BITS;

/// Rounds a sum.
const HALF: u32 = 1 << (BITS - 1);

/// Writes the pixels of the other size.
pub(super) fn resize(pixels: &[u8], from: PictureSize, to: PictureSize, resized: &mut [u8]) {
    let columns = blends(from.width, to.width);
    let row_bytes = to.width as usize * COLOURS;
    let mut narrow = vec![0; from.height as usize * row_bytes];
    let rows = pixels.chunks_exact(from.width as usize * COLOURS);
    for (row, target) in rows.zip(narrow.chunks_exact_mut(row_bytes)) {
        across(row, &columns, target);
    }

    let mut sums = vec![0; row_bytes];
    for (blend, target) in
        blends(from.height, to.height).iter().zip(resized.chunks_exact_mut(row_bytes))
    {
        down(&narrow, blend, &mut sums, target);
    }
}

/// A row of another width.
fn across(row: &[u8], columns: &[Blend], target: &mut [u8]) {
    for (Blend { first, weights }, target) in columns.iter().zip(target.chunks_exact_mut(COLOURS)) {
        let pixels = row[first * COLOURS..].chunks_exact(COLOURS);
        let [mut red, mut green, mut blue] = [HALF; COLOURS];
        for (pixel, weight) in pixels.zip(weights) {
            red += u32::from(pixel[0]) * weight;
            green += u32::from(pixel[1]) * weight;
            blue += u32::from(pixel[2]) * weight;
        }
        target.copy_from_slice(&[red, green, blue].map(whole));
    }
}

/// A row that is made of several.
fn down(rows: &[u8], blend: &Blend, sums: &mut [u32], target: &mut [u8]) {
    sums.fill(HALF);
    let rows = rows.chunks_exact(target.len()).skip(blend.first);
    for (row, weight) in rows.zip(&blend.weights) {
        for (sum, colour) in sums.iter_mut().zip(row) {
            *sum += u32::from(*colour) * weight;
        }
    }
    for (target, sum) in target.iter_mut().zip(sums) {
        *target = whole(*sum);
    }
}

/// The colour of a sum that began with a half.
fn whole(sum: u32) -> u8 {
    u8::try_from(sum >> BITS).unwrap_or(u8::MAX)
}

/// The blends of a line. With distances between centres of pixels in units of half a pixel of both lines, all of it is
/// in whole numbers: the centre of pixel `i` of `from` is `(2i + 1) * to`.
fn blends(from: u32, to: u32) -> Vec<Blend> {
    let (from, to) = (u64::from(from), u64::from(to));
    let reach = 2 * from.max(to);
    (0..to)
        .map(|target| {
            let centre = (2 * target + 1) * from;
            let weight = |source: u64| reach.saturating_sub(centre.abs_diff((2 * source + 1) * to));
            let first = (centre.saturating_sub(reach) / (2 * to)).min(from - 1);
            let first = (first..from).find(|&source| weight(source) > 0).unwrap_or(first);
            let weights: Vec<_> = (first..from).map(weight).take_while(|&it| it > 0).collect();
            let sum: u64 = weights.iter().sum();
            let part = |weight: u64| u32::try_from((weight * ONE + sum / 2) / sum);
            let weights = weights.into_iter().map(|it| part(it).expect("a part of one"));
            let first = usize::try_from(first).expect("a pixel of a line in memory");
            Blend { first, weights: weights.collect() }
        })
        .collect()
}
