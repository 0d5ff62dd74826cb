//! Table of all transitions of a claim; no other state and input changes anything.

use std::time::Duration;

use windlass_allocations::ledger::ClaimRef;

use super::*;

const NOTHING: Recorded = None;

/// A transition: old state, input, new state, action.
type Row = (State, Input, State, Action);

fn why() -> String {
    "why".to_owned()
}

fn claim() -> Box<Claim> {
    let [namespace, name, uid] = ["ns", "c", "u"].map(ToOwned::to_owned);
    let reference = ClaimRef { namespace, name, uid };
    Claim { reference, name_in_pod: "c".to_owned(), results: Vec::new(), configs: Vec::new() }
        .into()
}

fn states(patience: Deadline) -> Vec<State> {
    let mut all = vec![
        State::Comparing,
        State::Settling,
        State::Checking,
        State::Restoring,
        State::Forgetting,
        State::Resting(COMPLETED),
        State::Removing(COMPLETED),
    ];
    for recorded in [NOTHING, STARTED] {
        all.extend([
            State::Resting(recorded),
            State::Reading(recorded, None),
            State::Reading(recorded, Some(patience)),
            State::Waiting(recorded, patience),
            State::Making(recorded),
            State::Doing(recorded),
            State::Removing(recorded),
        ]);
    }
    all
}

fn inputs(patience: Deadline) -> Vec<Input> {
    vec![
        Input::Prepare,
        Input::Release,
        Input::Check,
        Input::Same,
        Input::Another,
        Input::Read(claim()),
        Input::Planned,
        Input::Unmade(claim()),
        Input::Blocked(Blocker::Sharers, patience),
        Input::Released(patience),
        Input::Abandoned,
        Input::Made(claim()),
        Input::Done,
        Input::Failed(why().into()),
        Input::Unrecorded(why()),
    ]
}

/// Transitions of the preparation of a claim with this stage in its record.
fn preparing(before: Recorded, patience: Deadline) -> Vec<Row> {
    let refuse = || Action::Refuse(why().into());
    let (resting, started) = (State::Resting(before), State::Resting(STARTED));
    let (waiting, doing) = (State::Waiting(before, patience), State::Doing(before));
    let (making, again) = (State::Making(before), State::Reading(before, Some(patience)));
    let unrecorded = match before {
        None => (State::Resting(NOTHING), Action::Undo(why())),
        Some(_) => (started, refuse()),
    };
    let mut rows = vec![
        (resting, Input::Prepare, State::Reading(before, None), Action::Read),
        (waiting, Input::Released(patience), again, Action::Read),
        (waiting, Input::Release, resting, Action::Abandon),
        (waiting, Input::Abandoned, resting, Action::Abandon),
        (making, Input::Made(claim()), State::Making(STARTED), Action::PlanAgain(claim())),
        (making, Input::Planned, doing, Action::Do),
        (making, Input::Failed(why().into()), started, refuse()),
        (making, Input::Unrecorded(why()), unrecorded.0, unrecorded.1.clone()),
        (doing, Input::Done, State::Settling, Action::Record),
        (doing, Input::Failed(why().into()), started, refuse()),
        (doing, Input::Unrecorded(why()), unrecorded.0, unrecorded.1),
    ];
    for reading in [State::Reading(before, None), again] {
        let held = || (Blocker::Sharers, patience);
        rows.extend([
            (reading, Input::Another, State::Removing(before), Action::Remove),
            (reading, Input::Read(claim()), reading, Action::Plan(claim())),
            (reading, Input::Planned, doing, Action::Do),
            (reading, Input::Unmade(claim()), making, Action::Make(claim())),
            (
                reading,
                Input::Blocked(held().0, held().1),
                waiting,
                Action::Wait(held().0, held().1),
            ),
            (reading, Input::Failed(why().into()), resting, refuse()),
        ]);
    }
    rows
}

/// All transitions that change the state or have an action.
fn rows(patience: Deadline) -> Vec<Row> {
    let refuse = || Action::Refuse(why().into());
    let (nothing, started) = (State::Resting(NOTHING), State::Resting(STARTED));
    let completed = State::Resting(COMPLETED);
    let mut rows = vec![
        (State::Settling, Input::Done, completed, Action::Answer),
        (State::Settling, Input::Unrecorded(why()), started, refuse()),
        (completed, Input::Prepare, State::Comparing, Action::Compare),
        (State::Comparing, Input::Same, State::Checking, Action::Do),
        (State::Comparing, Input::Another, State::Removing(COMPLETED), Action::Remove),
        (State::Checking, Input::Done, completed, Action::Answer),
        (State::Checking, Input::Failed(why().into()), completed, refuse()),
        (completed, Input::Check, State::Restoring, Action::Restore),
        (State::Restoring, Input::Done, completed, Action::Note(None)),
        (State::Restoring, Input::Failed(why().into()), completed, Action::Note(Some(why()))),
        (State::Removing(NOTHING), Input::Done, nothing, Action::Release),
        (State::Removing(NOTHING), Input::Failed(why().into()), nothing, Action::Keep(why())),
        (State::Forgetting, Input::Done, nothing, Action::Release),
        (State::Forgetting, Input::Unrecorded(why()), started, Action::Keep(why())),
    ];
    for before in [NOTHING, STARTED] {
        rows.extend(preparing(before, patience));
    }
    for known in [STARTED, COMPLETED] {
        rows.extend([
            (State::Removing(known), Input::Done, State::Forgetting, Action::Record),
            (State::Removing(known), Input::Failed(why().into()), started, Action::Keep(why())),
        ]);
    }
    for known in [NOTHING, STARTED, COMPLETED] {
        let removing = State::Removing(known);
        rows.push((State::Resting(known), Input::Release, removing, Action::Remove));
    }
    rows
}

#[test]
fn every_transition_is_in_the_table_and_late_inputs_change_nothing() {
    let patience = Deadline::after(Duration::from_secs(9));
    let mut rows = rows(patience);
    for state in states(patience) {
        for input in inputs(patience) {
            let row = rows.iter().position(|(from, by, ..)| *from == state && *by == input);
            let (to, action) = row.map_or((state, Action::Nothing), |at| {
                let (_, _, to, action) = rows.swap_remove(at);
                (to, action)
            });
            assert_eq!(state.next(input.clone()), (to, action), "{state:?} {input:?}");
        }
    }
    assert!(rows.is_empty(), "unreachable or repeated rows: {rows:?}");
}

#[test]
fn a_record_is_dropped_only_after_removal_or_if_no_step_was_begun() {
    let patience = Deadline::after(Duration::from_secs(9));
    for state in states(patience) {
        for input in inputs(patience) {
            let (next, action) = state.next(input.clone());
            let forgets = state.recorded().is_some() && next.recorded().is_none();
            let was_removed = matches!((state, &input), (State::Removing(_), Input::Done));
            let was_not_begun = matches!(action, Action::Undo(_));
            assert!(!forgets || was_removed || was_not_begun, "{state:?} {input:?}");
        }
    }
}

#[test]
fn a_claim_is_completed_after_its_steps_and_answered_after_its_record() {
    let patience = Deadline::after(Duration::from_secs(9));
    for state in states(patience) {
        for input in inputs(patience) {
            let (next, action) = state.next(input.clone());
            if next.recorded() == COMPLETED && state.recorded() != COMPLETED {
                assert!(matches!((state, &input), (State::Doing(_), Input::Done)), "{state:?}");
            }
            if action == Action::Answer {
                let is_recorded = matches!(state, State::Settling | State::Checking);
                assert!(is_recorded && input == Input::Done, "{state:?} {input:?}");
            }
        }
    }
}
