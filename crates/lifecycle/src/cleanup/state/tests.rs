//! Transitions of a device's state, and the property that no container starts on data of another pod.

use proptest::prelude::*;

use super::*;

fn pods(names: &[&str]) -> Tenants {
    names.iter().map(ToString::to_string).collect()
}

fn failure(attempts: u32) -> Failure {
    Failure { attempts, why: "no answer".to_owned(), since: Timestamp::UNIX_EPOCH }
}

fn failed_input() -> Input {
    Input::Failed { reason: "no answer".to_owned(), at: Timestamp::UNIX_EPOCH }
}

fn run(from: State, inputs: impl IntoIterator<Item = Input>) -> State {
    inputs.into_iter().fold(from, State::next)
}

#[test]
fn a_device_returns_to_clean_after_its_tenant() {
    let start = Input::Start(pods(&["a"]));
    let preparing = run(State::Clean, [start.clone()]);
    assert_eq!(preparing.work(), Some(Work::Prepare { clean_first: false }));
    let in_use = run(preparing, [Input::Done]);
    assert_eq!(in_use, State::InUse { tenants: pods(&["a"]) });
    assert_eq!(run(in_use.clone(), [start]), in_use, "its container started again");
    let cleaning = run(in_use, [Input::Released, Input::TimerElapsed]);
    assert_eq!(cleaning.work(), Some(Work::Clean { is_retry: false }));
    assert_eq!(run(cleaning, [Input::Done]), State::Clean);
}

#[test]
fn another_pod_gets_a_cleaned_device_even_without_a_seen_release() {
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
fn a_shared_device_is_prepared_for_the_first_pod_and_kept_for_others() {
    let first = run(State::Clean, [Input::Start(pods(&["a"])), Input::Done]);
    let both = run(first, [Input::Start(pods(&["a", "b"]))]);
    assert_eq!(both, State::InUse { tenants: pods(&["a", "b"]) });
    let second = run(both, [Input::Start(pods(&["b", "c"]))]);
    assert_eq!(
        second,
        State::InUse { tenants: pods(&["b", "c"]) },
        "the first pod released it meanwhile"
    );
    assert_eq!(
        run(State::Unsure, [Input::Start(pods(&["a", "b"]))]),
        State::InUse { tenants: pods(&["a", "b"]) },
        "one of them may be at work"
    );
}

fn start_claim(claim: &str, claims: &[&str]) -> Input {
    Input::StartClaim { claim: claim.to_owned(), claims: pods(claims) }
}

#[test]
fn a_claim_is_one_tenant_and_announces_its_release() {
    let release_claim = |claim: &str| Input::ReleaseClaim(claim.to_owned());
    let first = run(State::Clean, [start_claim("claim:a", &["claim:a"]), Input::Done]);
    assert!(first.is_held_by_claims());
    assert_eq!(
        run(first.clone(), [start_claim("claim:a", &["claim:a"])]),
        first,
        "another pod of it"
    );
    let both = run(first.clone(), [start_claim("claim:b", &["claim:a", "claim:b"])]);
    assert_eq!(both, State::InUse { tenants: pods(&["claim:a", "claim:b"]) }, "they share it");
    let second = run(both, [release_claim("claim:a")]);
    assert_eq!(second, State::InUse { tenants: pods(&["claim:b"]) });
    assert_eq!(run(second.clone(), [release_claim("claim:x")]), second);
    let dirty = run(second, [release_claim("claim:b")]);
    assert_eq!(dirty.unready(), Some("dirty"));
    let cleaning = run(dirty, [Input::TimerElapsed]);
    assert_eq!(cleaning.work(), Some(Work::Clean { is_retry: false }));
    let stale = run(first, [start_claim("claim:b", &["claim:b"])]);
    assert_eq!(
        stale.work(),
        Some(Work::Prepare { clean_first: true }),
        "no container has the first claim any more"
    );
    let failed = run(State::Clean, [start_claim("claim:a", &["claim:a"]), failed_input()]);
    assert_eq!(failed.unready(), Some("quarantined"));
    let released = run(failed, [release_claim("claim:a"), Input::TimerElapsed]);
    assert_eq!(released.work(), Some(Work::Clean { is_retry: true }));
}

#[test]
fn a_failed_step_quarantines_the_device_and_is_retried() {
    let quarantined = run(State::Clean, [Input::Start(pods(&["a"])), failed_input()]);
    let obstacle = quarantined.obstacle();
    assert_eq!(obstacle.as_deref(), Some("cleanup failed: no answer"));
    assert_eq!(
        run(quarantined.clone(), [Input::TimerElapsed]),
        quarantined,
        "its pod tries again itself"
    );
    let restarted = run(quarantined.clone(), [Input::Start(pods(&["a"]))]);
    assert_eq!(restarted.work(), Some(Work::Prepare { clean_first: true }));
    assert_eq!(restarted.obstacle(), obstacle, "it has not succeeded yet");
    let cleaning = run(quarantined, [Input::Released, Input::TimerElapsed]);
    assert_eq!(cleaning.work(), Some(Work::Clean { is_retry: true }));
    assert_eq!(cleaning.obstacle(), obstacle);
    assert_eq!(run(cleaning.clone(), [failed_input()]).failure(), Some(&failure(2)));
    assert_eq!(run(cleaning, [Input::Done]), State::Clean);
}

#[test]
fn a_start_that_was_not_announced_makes_a_device_unsure() {
    assert_eq!(run(State::Clean, [Input::Released]), State::Unsure);
    assert_eq!(run(State::Clean, [Input::Unreachable]), State::Unsure, "another may have had it");
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
        assert_eq!(serde_json::from_str::<State>(&text).expect("a written state"), state);
        assert!(State::NAMES.contains(&state.name()), "{state:?}");
    }
}

/// A device that keeps a pod's data until steps clean it.
struct Model {
    state: State,
    /// Pod whose data is on the device.
    data: Option<String>,
    /// The pod that has the device.
    pod: u32,
}

#[derive(Clone, Debug)]
enum Event {
    /// The pod that has the device starts its container.
    Start,
    /// The kubelet allocates the device to the next pod.
    NextPod,
    /// The agent sees that no pod has the device.
    Released,
    TimerElapsed,
    Done,
    Failed,
    Crash,
    Reboot,
}

impl Model {
    fn tenant(&self) -> String {
        self.pod.to_string()
    }

    fn apply(&mut self, event: &Event) {
        let input = match event {
            Event::NextPod => {
                self.pod += 1;
                return;
            }
            Event::Start => Input::Start([self.tenant()].into()),
            Event::Released => {
                self.pod += 1;
                Input::Released
            }
            Event::TimerElapsed => Input::TimerElapsed,
            Event::Failed => failed_input(),
            Event::Done => {
                let work = self.state.work();
                let is_cleaned =
                    matches!(work, Some(Work::Clean { .. } | Work::Prepare { clean_first: true }));
                if is_cleaned {
                    self.data = None;
                }
                Input::Done
            }
            Event::Crash | Event::Reboot => {
                let rebooted = matches!(event, Event::Reboot);
                self.state = self.state.clone().after_restart(rebooted);
                return;
            }
        };
        self.state = self.state.clone().next(input);
        if let State::InUse { tenants } = &self.state
            && tenants.contains(&self.tenant())
        {
            let other_pod = self.data.as_ref().filter(|pod| **pod != self.tenant());
            assert_eq!(other_pod, None, "{} starts on the data of another pod", self.tenant());
            self.data = Some(self.tenant());
        }
    }
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => Just(Event::Start),
        1 => Just(Event::NextPod),
        1 => Just(Event::Released),
        2 => Just(Event::TimerElapsed),
        4 => Just(Event::Done),
        1 => Just(Event::Failed),
        1 => Just(Event::Crash),
        1 => Just(Event::Reboot),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_container_starts_on_data_of_another_pod(
        events in proptest::collection::vec(event(), 1..60)
    ) {
        let mut model = Model { state: State::Unsure, data: Some("0".to_owned()), pod: 1 };
        for event in &events {
            model.apply(event);
        }
    }
}
