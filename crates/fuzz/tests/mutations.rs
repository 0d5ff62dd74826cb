//! Runs the fuzz targets on mutations of accepted inputs. A reader must not panic, hang, reject an input without an
//! explanation, or fail a round trip.
//!
//! Each run tries the same mutations. `WINDLASS_FUZZ_SECONDS=N` continues with new mutations for N seconds per target,
//! and prints their number. `cargo fuzz` in `/fuzz` searches for mutations that reach new code.

use std::{
    env, fs,
    path::Path,
    process,
    time::{Duration, Instant},
};

use proptest::{
    collection::vec,
    prelude::*,
    sample::{Index, select},
    test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner},
};
use windlass_fuzz::{Target, Verdict, target};

/// Mutation of an input.
#[derive(Clone, Debug)]
enum Edit {
    /// Replaces a byte.
    ReplaceByte(Index, u8),
    /// Removes a range of bytes.
    Remove(Index, usize),
    /// Truncates the input.
    Truncate(Index),
    /// Repeats a range of bytes many times.
    Repeat(Index, usize, usize),
    /// Inserts a piece of text.
    Insert(Index, &'static str),
    /// Replaces a word or a number.
    ReplaceWord(Index, &'static str),
    /// Moves a line.
    MoveLine(Index, Index),
    /// Replaces the end of the input by the end of another input.
    Splice(Index, Index, Index),
}

/// Texts on which parsers often fail.
const INSERTED_TEXTS: [&str; 40] = [
    "",
    "0",
    "-1",
    "1e999",
    "NaN",
    "18446744073709551616",
    "-9223372036854775809",
    "0x7fffffff",
    "null",
    "true",
    "~",
    "{}",
    "[]",
    "[[[[[[[[",
    "{{{{{{{{",
    "((((((((",
    "\"",
    "\"\"",
    "'",
    ":",
    ": ",
    "\n",
    "\n  - ",
    "\t",
    "\0",
    "\u{feff}",
    "\u{202e}",
    "é",
    "&a [*a, *a]",
    "*a",
    "!!binary ",
    "? ",
    "---\n",
    "../../..",
    "/dev/../etc/shadow",
    "$(id)",
    "%d",
    "*",
    "**********",
    "\\",
];

/// Maximum size of an input in bytes. Longer inputs reach no other code.
const MAX_BYTES: usize = 256 * 1024;

/// Time limit for one input, on a slow and busy machine.
const INPUT_TIMEOUT: Duration = Duration::from_secs(10);

/// Inputs per round.
const INPUTS_PER_ROUND: u32 = 256;

// === impl Edit ===

impl Edit {
    fn any() -> impl Strategy<Value = Self> {
        let at = any::<Index>;
        prop_oneof![
            1 => (at(), any::<u8>()).prop_map(|(at, byte)| Self::ReplaceByte(at, byte)),
            1 => (at(), 1..40_usize).prop_map(|(at, length)| Self::Remove(at, length)),
            1 => at().prop_map(Self::Truncate),
            1 => (at(), 1..30_usize, 2..400_usize)
                .prop_map(|(at, length, times)| Self::Repeat(at, length, times)),
            3 => (at(), select(&INSERTED_TEXTS[..])).prop_map(|(at, piece)| Self::Insert(at, piece)),
            6 => (at(), select(&INSERTED_TEXTS[..])).prop_map(|(at, piece)| Self::ReplaceWord(at, piece)),
            2 => (at(), at()).prop_map(|(from, to)| Self::MoveLine(from, to)),
            1 => (at(), at(), at()).prop_map(|(at, other, from)| Self::Splice(at, other, from)),
        ]
    }

    fn apply(&self, input: &mut Vec<u8>, seeds: &[Vec<u8>]) {
        let end = input.len();
        let offset = |at: &Index| at.index(end + 1);
        match self {
            Self::ReplaceByte(at, byte) if end > 0 => input[at.index(end)] = *byte,
            Self::ReplaceByte(..) => {}
            Self::Remove(at, length) => {
                drop(input.drain(offset(at)..end.min(offset(at) + length)));
            }
            Self::Truncate(at) => input.truncate(offset(at)),
            Self::Repeat(at, length, times) => {
                let piece = input[offset(at)..end.min(offset(at) + length)].repeat(*times);
                input.splice(offset(at)..offset(at), piece);
            }
            Self::Insert(at, piece) => drop(input.splice(offset(at)..offset(at), piece.bytes())),
            Self::ReplaceWord(at, piece) => {
                let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-/".contains(byte);
                let before = input[..offset(at)].iter().rev().take_while(|byte| is_word(byte));
                let after = input[offset(at)..].iter().take_while(|byte| is_word(byte));
                let (from, to) = (offset(at) - before.count(), offset(at) + after.count());
                input.splice(from..to, piece.bytes());
            }
            Self::MoveLine(from, to) => {
                let mut lines: Vec<_> =
                    input.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
                if !lines.is_empty() {
                    let line = lines.remove(from.index(lines.len()));
                    lines.insert(to.index(lines.len() + 1), line);
                    *input = lines.concat();
                }
            }
            Self::Splice(at, other, from) => {
                let other = other.get(seeds);
                input.truncate(offset(at));
                input.extend(&other[from.index(other.len() + 1)..]);
            }
        }
        input.truncate(MAX_BYTES);
    }
}

/// Runs a target on an input, and fails if that takes longer than [`INPUT_TIMEOUT`]. The input of a panic or hang
/// remains in a file.
fn read(target: &Target, input: &[u8]) -> Result<Verdict, TestCaseError> {
    let name = format!("{}-{}", target.name, process::id());
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&file, input).expect("a file");
    let start = Instant::now();
    let verdict = (target.read)(input);
    let duration = start.elapsed();
    fs::remove_file(&file).expect("the input's file");
    let excerpt = || String::from_utf8_lossy(&input[..input.len().min(2000)]).into_owned();
    prop_assert!(duration < INPUT_TIMEOUT, "{} took {duration:?} for {:?}", target.name, excerpt());
    Ok(verdict)
}

/// Tries one round of mutations. The round's number seeds the random generator.
fn try_round(target: &Target, seeds: &[Vec<u8>], (number, cases): (u64, u32)) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&number.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let inputs = (any::<Index>(), vec(Edit::any(), 1..8));
    let result = TestRunner::new_with_rng(config, rng).run(&inputs, |(seed, edits)| {
        let mut input = seed.get(seeds).clone();
        for edit in &edits {
            edit.apply(&mut input, seeds);
        }
        read(target, &input).map(drop)
    });
    result.unwrap_or_else(|error| panic!("{}, round {number}: {error}", target.name));
}

/// Checks that a target accepts its seeds, then tries this number of mutations.
fn check(name: &str, cases: u32) {
    let target = target(name);
    let seeds = (target.seeds)();
    assert!(!seeds.is_empty(), "{name} has no seeds");
    let is_refused = |seed: &&Vec<u8>| {
        let verdict = read(&target, seed).unwrap_or_else(|error| panic!("{error}"));
        verdict == Verdict::Refused
    };
    let refused: Vec<_> = seeds.iter().filter(is_refused).collect();
    let texts = refused.iter().map(|seed| String::from_utf8_lossy(seed));
    assert!(
        refused.is_empty(),
        "{name} rejects its seeds\n{}",
        texts.collect::<Vec<_>>().join("\n---\n")
    );
    try_round(&target, &seeds, (0, cases));
    let seconds = env::var("WINDLASS_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let Some(seconds) = seconds.map(Duration::from_secs) else { return };
    let (start, mut number) = (Instant::now(), 0);
    while start.elapsed() < seconds {
        number += 1;
        try_round(&target, &seeds, (number, INPUTS_PER_ROUND));
    }
    #[expect(clippy::print_stdout, reason = "requested by WINDLASS_FUZZ_SECONDS")]
    {
        println!("{name}: {} inputs", number * u64::from(INPUTS_PER_ROUND) + u64::from(cases));
    }
}

#[test]
fn configurations_of_every_format() {
    check("configuration", 400);
}

#[test]
fn udev_rules() {
    check("udev_rules", 600);
}

#[test]
fn machine_profiles() {
    check("machine_profile", 300);
}

#[test]
fn cdi_documents() {
    check("cdi", 400);
}

#[test]
fn device_manager_checkpoints() {
    check("checkpoint", 600);
}

#[test]
fn dra_manager_checkpoints() {
    check("claim_checkpoint", 1000);
}

#[test]
fn state_files_of_the_agent() {
    check("kept", 1500);
}

#[test]
fn allocated_claims() {
    for seed in (target("claim").seeds)() {
        assert_eq!(windlass_node::documents::check_claim(&seed), Ok(()), "a valid seed");
    }
    check("claim", 1500);
}

#[test]
fn claim_parameters() {
    check("claim_parameters", 1500);
}

#[test]
fn expressions_and_names() {
    check("selector", 600);
}

#[test]
fn messages_of_the_kubelet() {
    check("messages", 1500);
}

#[test]
fn messages_of_the_container_runtime() {
    check("nri", 1500);
}

#[test]
fn corrupt_sysfs() {
    check("host", 30);
}
