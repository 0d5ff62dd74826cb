//! Prices of fractions of a GPU, compared with known solutions of the cutting-stock problem.

use proptest::{collection::btree_map, prelude::*};
use windlass_sched::{
    forecast::RequestCount,
    prices::Prices,
    request::{Gpus, ProfileId},
};

use crate::world::request;

const TOLERANCE: f64 = 1e-6;

/// Counts of shares, from their size in thousandths of a GPU and their number of pods.
fn counts(shares: &[(u16, u32)]) -> Vec<RequestCount> {
    let count = |(milli, pods): &(u16, u32)| RequestCount {
        request: request(Gpus::share(*milli, 0)),
        gpu_milli: u32::from(*milli),
        pods: f64::from(*pods),
    };
    shares.iter().map(count).collect()
}

/// The value of each remainder in steps of 10 thousandths, computed from regrets, because values are private.
///
/// The regret of the smallest share is `v(r) - v(r - 10) - v(10)`, so its sum to `r` is `v(r)` less a multiple of
/// `v(10)`. A whole GPU is worth one, which gives `v(10)`.
fn values(prices: &Prices) -> Vec<f64> {
    let sums = (0..=1000_u16).step_by(10).scan(0.0, |sum, free_milli| {
        *sum += if free_milli > 0 { prices.regret(free_milli, 10) } else { 0.0 };
        Some(*sum)
    });
    let sums: Vec<f64> = sums.collect();
    let smallest = (1.0 - sums[100]) / 100.0;
    (0_u32..).zip(sums).map(|(steps, sum)| sum + f64::from(steps) * smallest).collect()
}

fn value(values: &[f64], milli: u16) -> f64 {
    values[usize::from(milli / 10)]
}

#[test]
fn prices_equal_known_solutions() {
    let check = |shares: &[(u16, u32)], expected: &[(u16, f64)]| {
        let values = values(&Prices::of(&counts(shares)));
        for (milli, price) in expected {
            let found = value(&values, *milli);
            assert!(
                (found - price).abs() < TOLERANCE,
                "{milli} of {shares:?}: {found}, expected {price}"
            );
        }
    };
    let (third, quarter) = (1.0 / 3.0, 0.25);
    check(&[(500, 7)], &[(490, 0.0), (500, 0.5), (990, 0.5), (1000, 1.0)]);
    check(
        &[(300, 7)],
        &[(290, 0.0), (300, third), (600, 2.0 * third), (890, 2.0 * third), (900, 1.0)],
    );
    check(&[(1000, 7)], &[(990, 0.0), (1000, 1.0)]);
    check(&[(10, 7)], &[(10, 0.01), (370, 0.37), (1000, 1.0)]);
    check(&[(1, 7)], &[(10, 0.01), (370, 0.37), (1000, 1.0)]);
    check(&[(501, 7)], &[(500, 0.0), (510, 1.0), (1000, 1.0)]);
    // The sizes of the public trace: the smallest ones fill the remainders of the others.
    check(
        &[(810, 100), (470, 80), (320, 60), (230, 40), (160, 20)],
        &[
            (160, 0.0),
            (220, 0.0),
            (230, quarter),
            (310, quarter),
            (320, third),
            (460, 0.5),
            (470, 0.5),
            (630, quarter + third),
            (640, 2.0 * third),
            (690, 0.75),
            (800, 0.5 + third),
            (810, 1.0),
            (1000, 1.0),
        ],
    );
    check(&[(333, 7)], &[(330, 0.0), (340, third), (670, 2.0 * third), (1000, 1.0)]);
    check(&[(125, 7)], &[(120, 0.0), (130, 0.125), (880, 0.875), (1000, 1.0)]);
    // A GPU fits two halves, one half and two quarters, or four quarters.
    check(&[(500, 10), (250, 10)], &[(250, quarter), (500, 0.5), (750, 0.75)]);
}

#[test]
fn a_regret_is_the_value_that_a_share_destroys() {
    let check = |shares: &[(u16, u32)], free_milli: u16, share: u16, expected: f64| {
        let found = Prices::of(&counts(shares)).regret(free_milli, share);
        assert!(
            (found - expected).abs() < TOLERANCE,
            "{share} of {free_milli}: {found}, expected {expected}"
        );
    };
    let halves = [(500, 10)];
    check(&halves, 1000, 500, 0.0);
    check(&halves, 1000, 300, 0.5);
    check(&halves, 1000, 600, 0.5);
    check(&halves, 1000, 1000, 0.0);
    check(&halves, 700, 200, 0.0);
    check(&halves, 700, 300, 0.5);
    check(&halves, 400, 300, 0.0);
    check(&halves, 0, 0, 0.0);
    // If the forecast has no share, only a whole GPU has a value.
    check(&[], 1000, 1, 1.0);
    check(&[], 1000, 1000, 0.0);
    check(&[], 990, 500, 0.0);
}

#[test]
fn a_share_between_two_steps_keeps_its_own_price() {
    for milli in [815, 501, 335, 999, 1] {
        let prices = Prices::of(&counts(&[(milli, 10)]));
        let found = prices.regret(1000, milli);
        assert!(found < TOLERANCE, "{milli} of a free GPU has the regret {found}");
    }
}

#[test]
fn only_shares_have_prices() {
    let others = [Gpus::None, Gpus::Whole(1), Gpus::Whole(8), Gpus::Partition(ProfileId(0))];
    let others =
        others.map(|gpus| RequestCount { request: request(gpus), gpu_milli: 1000, pods: 5.0 });
    assert_eq!(Prices::of(&others), Prices::default());
    assert_eq!(Prices::of(&[]), Prices::default());
    assert_eq!(Prices::of(&counts(&[(0, 9)])), Prices::default());
}

/// The least number of GPUs for two sizes of shares, if fractions of a pattern are allowed. It is the maximum of the
/// dual problem over the corners of its feasible region, with one constraint per pattern.
fn least_gpus(first: (u16, u32), second: (u16, u32)) -> f64 {
    let patterns: Vec<(f64, f64)> = (0..=1000 / first.0)
        .map(|count| (f64::from(count), f64::from((1000 - count * first.0) / second.0)))
        .collect();
    let is_feasible = |(x, y): (f64, f64)| {
        x >= -TOLERANCE
            && y >= -TOLERANCE
            && patterns.iter().all(|(a, b)| a * x + b * y <= 1.0 + TOLERANCE)
    };
    let mut lines: Vec<(f64, f64, f64)> = patterns.iter().map(|(a, b)| (*a, *b, 1.0)).collect();
    lines.extend([(1.0, 0.0, 0.0), (0.0, 1.0, 0.0)]);
    let mut max = 0.0_f64;
    for (nth, (a, b, c)) in lines.iter().enumerate() {
        for (d, e, f) in &lines[..nth] {
            let determinant = a * e - b * d;
            let corner = ((c * e - b * f) / determinant, (a * f - c * d) / determinant);
            if determinant.abs() > TOLERANCE && is_feasible(corner) {
                max = max.max(f64::from(first.1) * corner.0 + f64::from(second.1) * corner.1);
            }
        }
    }
    max
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn two_sizes_have_the_prices_of_the_dual_problem(
        first in (3..=100_u16, 1..1000_u32),
        second in (3..=100_u16, 1..1000_u32),
    ) {
        let (first, second) = ((first.0 * 10, first.1), (second.0 * 10, second.1));
        prop_assume!(first.0 != second.0);
        let values = values(&Prices::of(&counts(&[first, second])));
        let worth = f64::from(first.1) * value(&values, first.0)
            + f64::from(second.1) * value(&values, second.0);
        let least = least_gpus(first, second);
        prop_assert!((worth - least).abs() < least * TOLERANCE, "{}, expected {}", worth, least);
    }
}

fn check_values(prices: &Prices) -> Result<(), TestCaseError> {
    let values = values(prices);
    prop_assert!(values[0].abs() < TOLERANCE && (values[100] - 1.0).abs() < TOLERANCE);
    for remainder in 1..=100 {
        prop_assert!(
            values[remainder] >= values[remainder - 1] - TOLERANCE,
            "the value decreases at {}",
            remainder
        );
        for part in 0..=remainder {
            let sum = values[part] + values[remainder - part];
            prop_assert!(
                sum <= values[remainder] + TOLERANCE,
                "remainder {} in two parts, one of {}",
                remainder,
                part
            );
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    // It follows that no pattern of shares is worth more than the GPU that it fits.
    #[test]
    fn values_increase_and_are_superadditive(
        shares in btree_map(1..=1000_u16, 1..10_000_u32, 1..12),
    ) {
        check_values(&Prices::of(&counts(&shares.into_iter().collect::<Vec<_>>())))?;
    }

    #[test]
    fn a_regret_is_never_negative_and_at_most_a_gpu(
        shares in btree_map(1..=1000_u16, 1..10_000_u32, 0..12),
        pairs in proptest::collection::vec((any::<u16>(), any::<u16>()), 50),
    ) {
        let prices = Prices::of(&counts(&shares.into_iter().collect::<Vec<_>>()));
        for (left, share) in pairs {
            for (left, share) in [(left, share), (left % 1001, share % 1001)] {
                let regret = prices.regret(left, share);
                prop_assert!((0.0..=1.0 + TOLERANCE).contains(&regret), "{} of {}", share, left);
            }
        }
    }
}

#[test]
fn the_rarest_sizes_beyond_the_limit_have_no_price() {
    let all: Vec<(u16, u32)> =
        (1..=100_u16).map(|steps| (steps * 10, 1000 - u32::from(steps))).collect();
    let prices = Prices::of(&counts(&all));
    check_values(&prices).expect("the values of many sizes");
    let frequent = Prices::of(&counts(&all[..64]));
    assert_eq!(prices, frequent);
}
