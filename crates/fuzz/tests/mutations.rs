//! Mutations of accepted inputs. A reader must never panic, hang, refuse without words, or fail a round
//! trip.
//!
//! Mutations are the same in each run. `WINDLASS_FUZZ_SECONDS` continues with new ones for this time per
//! reader, and prints their number. `cargo fuzz` in `/fuzz` searches for mutations that reach new code.

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
    Byte(Index, u8),
    /// Removes a range of bytes.
    Cut(Index, usize),
    /// Truncates the input.
    End(Index),
    /// Repeats a range of bytes many times.
    Repeat(Index, usize, usize),
    /// Inserts a piece of text.
    Insert(Index, &'static str),
    /// Replaces a word or a number.
    Word(Index, &'static str),
    /// Moves a line.
    Line(Index, Index),
    /// Continues with the rest of another input.
    Splice(Index, Index, Index),
}

/// Texts that often break readers.
const PIECES: [&str; 40] = [
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

/// Most bytes of an input; longer inputs reach no further code.
const MAX_BYTES: usize = 256 * 1024;

/// Deadline of one input, on a slow and busy machine.
const LIMIT: Duration = Duration::from_secs(10);

/// Inputs per round.
const ROUND: u32 = 256;

// === impl Edit ===

impl Edit {
    fn any() -> impl Strategy<Value = Self> {
        let at = any::<Index>;
        prop_oneof![
            1 => (at(), any::<u8>()).prop_map(|(at, byte)| Self::Byte(at, byte)),
            1 => (at(), 1..40_usize).prop_map(|(at, length)| Self::Cut(at, length)),
            1 => at().prop_map(Self::End),
            1 => (at(), 1..30_usize, 2..400_usize)
                .prop_map(|(at, length, times)| Self::Repeat(at, length, times)),
            3 => (at(), select(&PIECES[..])).prop_map(|(at, piece)| Self::Insert(at, piece)),
            6 => (at(), select(&PIECES[..])).prop_map(|(at, piece)| Self::Word(at, piece)),
            2 => (at(), at()).prop_map(|(from, to)| Self::Line(from, to)),
            1 => (at(), at(), at()).prop_map(|(at, other, from)| Self::Splice(at, other, from)),
        ]
    }

    fn apply(&self, input: &mut Vec<u8>, seeds: &[Vec<u8>]) {
        let end = input.len();
        let place = |at: &Index| at.index(end + 1);
        match self {
            Self::Byte(at, byte) if end > 0 => input[at.index(end)] = *byte,
            Self::Byte(..) => {}
            Self::Cut(at, length) => drop(input.drain(place(at)..end.min(place(at) + length))),
            Self::End(at) => input.truncate(place(at)),
            Self::Repeat(at, length, times) => {
                let piece = input[place(at)..end.min(place(at) + length)].repeat(*times);
                input.splice(place(at)..place(at), piece);
            }
            Self::Insert(at, piece) => drop(input.splice(place(at)..place(at), piece.bytes())),
            Self::Word(at, piece) => {
                let of_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-/".contains(byte);
                let before = input[..place(at)].iter().rev().take_while(|byte| of_word(byte));
                let after = input[place(at)..].iter().take_while(|byte| of_word(byte));
                let (from, to) = (place(at) - before.count(), place(at) + after.count());
                input.splice(from..to, piece.bytes());
            }
            Self::Line(from, to) => {
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
                input.truncate(place(at));
                input.extend(&other[from.index(other.len() + 1)..]);
            }
        }
        input.truncate(MAX_BYTES);
    }
}

/// Reads an input within the deadline. An input that crashes or hangs the process remains in a file.
fn read(target: &Target, input: &[u8]) -> Result<Verdict, TestCaseError> {
    let own = format!("{}-{}", target.name, process::id());
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(own);
    fs::write(&file, input).expect("a file");
    let began = Instant::now();
    let verdict = (target.read)(input);
    let took = began.elapsed();
    fs::remove_file(&file).expect("it is there");
    let shown = || String::from_utf8_lossy(&input[..input.len().min(2000)]).into_owned();
    prop_assert!(took < LIMIT, "{} took {took:?} for {:?}", target.name, shown());
    Ok(verdict)
}

/// Tries one round of inputs. The round's number seeds the inputs.
fn try_round(target: &Target, seeds: &[Vec<u8>], (number, cases): (u64, u32)) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&number.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let inputs = (any::<Index>(), vec(Edit::any(), 1..8));
    let outcome = TestRunner::new_with_rng(config, rng).run(&inputs, |(seed, edits)| {
        let mut input = seed.get(seeds).clone();
        for edit in &edits {
            edit.apply(&mut input, seeds);
        }
        read(target, &input).map(drop)
    });
    outcome.unwrap_or_else(|error| panic!("{}, round {number}: {error}", target.name));
}

fn check(name: &str, cases: u32) {
    let target = target(name);
    let seeds = (target.seeds)();
    assert!(!seeds.is_empty(), "{name} has nothing to begin from");
    let is_refused = |seed: &&Vec<u8>| {
        let verdict = read(&target, seed).unwrap_or_else(|error| panic!("{error}"));
        verdict == Verdict::Refused
    };
    let refused: Vec<_> = seeds.iter().filter(is_refused).collect();
    let shown = refused.iter().map(|seed| String::from_utf8_lossy(seed));
    assert!(
        refused.is_empty(),
        "{name} begins from\n{}",
        shown.collect::<Vec<_>>().join("\n---\n")
    );
    try_round(&target, &seeds, (0, cases));
    let seconds = env::var("WINDLASS_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let Some(seconds) = seconds.map(Duration::from_secs) else { return };
    let (began, mut number) = (Instant::now(), 0);
    while began.elapsed() < seconds {
        number += 1;
        try_round(&target, &seeds, (number, ROUND));
    }
    #[expect(clippy::print_stdout, reason = "who asked for it reads it, with --nocapture")]
    {
        println!("{name}: {} inputs", number * u64::from(ROUND) + u64::from(cases));
    }
}

#[test]
fn configurations_of_every_format() {
    check("configuration", 400);
}

#[test]
fn rules_of_udev() {
    check("udev_rules", 600);
}

#[test]
fn profiles_of_machines() {
    check("machine_profile", 300);
}

#[test]
fn cdi_documents() {
    check("cdi", 400);
}

#[test]
fn the_device_managers_record() {
    check("checkpoint", 600);
}

#[test]
fn the_dra_managers_record() {
    check("claim_checkpoint", 1000);
}

#[test]
fn what_an_earlier_agent_kept() {
    check("kept", 1500);
}

#[test]
fn claims_of_an_api_server_that_lies() {
    for seed in (target("claim").seeds)() {
        assert_eq!(windlass_node::documents::check_claim(&seed), Ok(()), "what is changed is good");
    }
    check("claim", 1500);
}

#[test]
fn what_a_claim_says_to_the_driver() {
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
fn sysfs_as_it_should_not_be() {
    check("host", 30);
}
