//! No container starts on what another pod left behind, whatever happens in between.

use proptest::prelude::*;

use super::*;

fn pods(names: &[&str]) -> Tenants {
    names.iter().map(ToString::to_string).collect()
}

fn failure(attempts: u32) -> Failure {
    Failure { attempts, why: "no answer".to_owned(), since: Timestamp::UNIX_EPOCH }
}

fn failed() -> Input {
    Input::Failed { why: "no answer".to_owned(), at: Timestamp::UNIX_EPOCH }
}

fn run(from: State, inputs: impl IntoIterator<Item = Input>) -> State {
    inputs.into_iter().fold(from, State::next)
}

#[test]
fn a_device_goes_round_from_clean_to_clean() {
    let start = Input::Start(pods(&["a"]));
    let preparing = run(State::Clean, [start.clone()]);
    assert_eq!(preparing.work(), Some(Work::Prepare { clean_first: false }));
    let in_use = run(preparing, [Input::Done]);
    assert_eq!(in_use, State::InUse { tenants: pods(&["a"]) });
    assert_eq!(run(in_use.clone(), [start]), in_use, "its container started again");
    let cleaning = run(in_use, [Input::Released, Input::Due]);
    assert_eq!(cleaning.work(), Some(Work::Clean { again: false }));
    assert_eq!(run(cleaning, [Input::Done]), State::Clean);
}

#[test]
fn another_pod_gets_it_cleaned_though_nobody_saw_it_let_go() {
    for dirty in [
        State::Unsure,
        State::InUse { tenants: pods(&["a"]) },
        State::Dirty { tenants: pods(&[]) },
        State::Quarantined { tenants: pods(&[]), failed: failure(2) },
        State::InUse { tenants: pods(&[]) },
    ] {
        let next = run(dirty.clone(), [Input::Start(pods(&["b"]))]);
        assert_eq!(next.work(), Some(Work::Prepare { clean_first: true }), "{dirty:?}");
    }
}

#[test]
fn what_is_shared_is_prepared_for_the_first_and_cleaned_after_the_last() {
    let first = run(State::Clean, [Input::Start(pods(&["a"])), Input::Done]);
    let both = run(first, [Input::Start(pods(&["a", "b"]))]);
    assert_eq!(both, State::InUse { tenants: pods(&["a", "b"]) });
    let second = run(both, [Input::Start(pods(&["b", "c"]))]);
    assert_eq!(second, State::InUse { tenants: pods(&["b", "c"]) }, "the first let go meanwhile");
    assert_eq!(
        run(State::Unsure, [Input::Start(pods(&["a", "b"]))]),
        State::InUse { tenants: pods(&["a", "b"]) },
        "one of them may be at work"
    );
}

fn join(claim: &str, claims: &[&str]) -> Input {
    Input::Join { claim: claim.to_owned(), claims: pods(claims) }
}

#[test]
fn a_claim_is_one_tenant_and_says_itself_when_it_lets_go() {
    let leave = |claim: &str| Input::Leave(claim.to_owned());
    let first = run(State::Clean, [join("claim:a", &["claim:a"]), Input::Done]);
    assert!(first.is_of_claims());
    assert_eq!(run(first.clone(), [join("claim:a", &["claim:a"])]), first, "another pod of it");
    let both = run(first.clone(), [join("claim:b", &["claim:a", "claim:b"])]);
    assert_eq!(both, State::InUse { tenants: pods(&["claim:a", "claim:b"]) }, "they share it");
    let second = run(both, [leave("claim:a")]);
    assert_eq!(second, State::InUse { tenants: pods(&["claim:b"]) });
    assert_eq!(run(second.clone(), [leave("claim:x")]), second);
    let dirty = run(second, [leave("claim:b")]);
    assert_eq!(dirty.unready(), Some("dirty"));
    let cleaning = run(dirty, [Input::Due]);
    assert_eq!(cleaning.work(), Some(Work::Clean { again: false }));
    let stale = run(first, [join("claim:b", &["claim:b"])]);
    assert_eq!(stale.work(), Some(Work::Prepare { clean_first: true }), "nobody has the first");
    let failed = run(State::Clean, [join("claim:a", &["claim:a"]), failed()]);
    assert_eq!(failed.unready(), Some("quarantined"));
    let released = run(failed, [leave("claim:a"), Input::Due]);
    assert_eq!(released.work(), Some(Work::Clean { again: true }));
}

#[test]
fn a_failed_step_keeps_the_device_from_others_and_is_tried_again() {
    let quarantined = run(State::Clean, [Input::Start(pods(&["a"])), failed()]);
    let why = quarantined.obstacle();
    assert_eq!(why.as_deref(), Some("cleanup failed: no answer"));
    assert_eq!(run(quarantined.clone(), [Input::Due]), quarantined, "its pod tries again itself");
    let again = run(quarantined.clone(), [Input::Start(pods(&["a"]))]);
    assert_eq!(again.work(), Some(Work::Prepare { clean_first: true }));
    assert_eq!(again.obstacle(), why, "it has not succeeded yet");
    let cleaning = run(quarantined, [Input::Released, Input::Due]);
    assert_eq!(cleaning.work(), Some(Work::Clean { again: true }));
    assert_eq!(cleaning.obstacle(), why);
    assert_eq!(run(cleaning.clone(), [failed()]).failure(), Some(&failure(2)));
    assert_eq!(run(cleaning, [Input::Done]), State::Clean);
}

#[test]
fn a_start_that_was_never_announced_leaves_doubt() {
    assert_eq!(run(State::Clean, [Input::Released]), State::Unsure);
    assert_eq!(run(State::Clean, [Input::Lost]), State::Unsure, "another may have had it");
}

#[test]
fn every_state_reads_back_as_it_was_written() {
    for state in [
        State::Unsure,
        State::Clean,
        State::Preparing { tenants: pods(&["a"]), clean_first: true, failed: None },
        State::InUse { tenants: pods(&["a"]) },
        State::Dirty { tenants: pods(&[]) },
        State::Cleaning { failed: Some(failure(1)) },
        State::Quarantined { tenants: pods(&["a"]), failed: failure(1) },
    ] {
        let text = serde_json::to_string(&state).expect("plain values");
        assert_eq!(serde_json::from_str::<State>(&text).expect("ours"), state);
        assert!(State::NAMES.contains(&state.name()), "{state:?}");
    }
}

/// A device with a memory of its own, which only steps wipe.
struct Model {
    state: State,
    /// Pods whose traces are on it.
    traces: Option<String>,
    /// The pod that has it.
    pod: u32,
}

#[derive(Clone, Debug)]
enum Happening {
    /// The pod that has it starts its container.
    Start,
    /// The kubelet gives it to the next pod.
    NextPod,
    /// The agent sees that nobody has it.
    Released,
    Due,
    Done,
    Failed,
    Crash,
    Reboot,
}

impl Model {
    fn tenant(&self) -> String {
        self.pod.to_string()
    }

    fn happen(&mut self, happening: &Happening) {
        let input = match happening {
            Happening::NextPod => {
                self.pod += 1;
                return;
            }
            Happening::Start => Input::Start([self.tenant()].into()),
            Happening::Released => {
                self.pod += 1;
                Input::Released
            }
            Happening::Due => Input::Due,
            Happening::Failed => failed(),
            Happening::Done => {
                let work = self.state.work();
                let cleaned =
                    matches!(work, Some(Work::Clean { .. } | Work::Prepare { clean_first: true }));
                if cleaned {
                    self.traces = None;
                }
                Input::Done
            }
            Happening::Crash | Happening::Reboot => {
                let rebooted = matches!(happening, Happening::Reboot);
                self.state = self.state.clone().restored(rebooted);
                return;
            }
        };
        self.state = self.state.clone().next(input);
        if let State::InUse { tenants } = &self.state
            && tenants.contains(&self.tenant())
        {
            let stranger = self.traces.as_ref().filter(|pod| **pod != self.tenant());
            assert_eq!(stranger, None, "{} starts on what another left", self.tenant());
            self.traces = Some(self.tenant());
        }
    }
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        3 => Just(Happening::Start),
        1 => Just(Happening::NextPod),
        1 => Just(Happening::Released),
        2 => Just(Happening::Due),
        4 => Just(Happening::Done),
        1 => Just(Happening::Failed),
        1 => Just(Happening::Crash),
        1 => Just(Happening::Reboot),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_container_starts_on_what_another_pod_left(
        happenings in proptest::collection::vec(happening(), 1..60)
    ) {
        let mut model = Model { state: State::Unsure, traces: Some("0".to_owned()), pod: 1 };
        for happening in &happenings {
            model.happen(happening);
        }
    }
}
