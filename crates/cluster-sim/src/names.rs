//! Suffixes of generated names, deterministic for a seed.

use windlass_sched::random::Random;

/// Alphabet of the real server (`k8s.io/apimachinery/pkg/util/rand`). It has no vowels, so that no words occur.
const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// Suffix of five letters for a generated name.
pub(crate) fn suffix(random: &mut Random) -> String {
    let mut number = random.next_u64();
    let letter = |_| {
        let index = usize::try_from(number % 27).expect("less than 27");
        number /= 27;
        char::from(LETTERS[index])
    };
    (0..5).map(letter).collect()
}
