//! Random numbers: the published sequence, their ranges and their distributions.

use windlass_sched::random::Random;

#[test]
fn the_sequence_is_that_of_splitmix64() {
    let check = |seed: u64, expected: [u64; 3]| {
        let mut random = Random::new(seed);
        assert_eq!([(); 3].map(|()| random.next_u64()), expected, "seed {seed}");
    };
    check(0, [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]);
    check(
        1_234_567,
        [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423],
    );
}

#[test]
fn random_numbers_are_in_range_and_uniform() {
    let mut random = Random::new(42);
    let mut counts = [0; 7];
    (0..7000).for_each(|_| counts[random.below(7)] += 1);
    assert!(counts.iter().all(|count| (900..1100).contains(count)), "{counts:?}");
    assert!((0..1000).all(|_| random.below(1) == 0));
    assert!((0..1000).map(|_| random.unit()).all(|it| it > 0.0 && it <= 1.0));
    let mean = (0..10_000).map(|_| random.exponential(3.0)).sum::<f64>() / 10_000.0;
    assert!((2.9..3.1).contains(&mean), "{mean}");
}

#[test]
fn shuffles_are_uniform() {
    let mut random = Random::new(42);
    let mut counts = std::collections::HashMap::<[u8; 3], u32>::new();
    for _ in 0..6000 {
        let mut items = [1, 2, 3];
        random.shuffle(&mut items);
        *counts.entry(items).or_default() += 1;
    }
    assert_eq!(counts.len(), 6);
    assert!(counts.values().all(|count| (880..1120).contains(count)), "{counts:?}");
}
