//! Table of all transitions of a claim; no other state and input changes anything.

use std::time::Duration;

use windlass_allocations::ledger::ClaimRef;

use super::*;

const NOTHING: RecordedStage = None;

/// A transition: old state, input, new state, action.
type Row = (State, Input, State, Action);

fn why() -> String {
    "why".to_owned()
}

fn claim() -> Box<Claim> {
    let [namespace, name, uid] = ["ns", "c", "u"].map(ToOwned::to_owned);
    let reference = ClaimRef { namespace, name, uid };
    Claim { reference, pod_claim_name: "c".to_owned(), results: Vec::new(), configs: Vec::new() }
        .into()
}

fn states(deadline: Deadline) -> Vec<State> {
    let mut all = vec![
        State::Comparing,
        State::Completing,
        State::Checking,
        State::Restoring,
        State::DroppingRecord,
        State::Idle(COMPLETED),
        State::UndoingSteps(COMPLETED),
    ];
    for recorded in [NOTHING, STARTED] {
        all.extend([
            State::Idle(recorded),
            State::Reading(recorded, None),
            State::Reading(recorded, Some(deadline)),
            State::Waiting(recorded, deadline),
            State::ChangingMig(recorded),
            State::Executing(recorded),
            State::UndoingSteps(recorded),
        ]);
    }
    all
}

fn inputs(deadline: Deadline) -> Vec<Input> {
    vec![
        Input::Prepare,
        Input::Release,
        Input::Check,
        Input::Unchanged,
        Input::Reallocated,
        Input::ClaimRead(claim()),
        Input::Planned,
        Input::NeedsMigChange(claim()),
        Input::Blocked(Blocker::ShareHolders, deadline),
        Input::Released(deadline),
        Input::Abandoned,
        Input::MigChanged(claim()),
        Input::Done,
        Input::Failed(why().into()),
        Input::RecordFailed(why()),
    ]
}

/// Transitions of the preparation of a claim with this stage in its record.
fn preparing(before: RecordedStage, deadline: Deadline) -> Vec<Row> {
    let refuse = || Action::Refuse(why().into());
    let (idle, started) = (State::Idle(before), State::Idle(STARTED));
    let (waiting, executing) = (State::Waiting(before, deadline), State::Executing(before));
    let (changing, again) = (State::ChangingMig(before), State::Reading(before, Some(deadline)));
    let unrecorded = match before {
        None => (State::Idle(NOTHING), Action::RollBack(why())),
        Some(_) => (started, refuse()),
    };
    let mut rows = vec![
        (idle, Input::Prepare, State::Reading(before, None), Action::Read),
        (waiting, Input::Released(deadline), again, Action::Read),
        (waiting, Input::Release, idle, Action::Abandon),
        (waiting, Input::Abandoned, idle, Action::Abandon),
        (
            changing,
            Input::MigChanged(claim()),
            State::ChangingMig(STARTED),
            Action::Replan(claim()),
        ),
        (changing, Input::Planned, executing, Action::Execute),
        (changing, Input::Failed(why().into()), started, refuse()),
        (changing, Input::RecordFailed(why()), unrecorded.0, unrecorded.1.clone()),
        (executing, Input::Done, State::Completing, Action::Record),
        (executing, Input::Failed(why().into()), started, refuse()),
        (executing, Input::RecordFailed(why()), unrecorded.0, unrecorded.1),
    ];
    for reading in [State::Reading(before, None), again] {
        let held = || (Blocker::ShareHolders, deadline);
        rows.extend([
            (reading, Input::Reallocated, State::UndoingSteps(before), Action::UndoSteps),
            (reading, Input::ClaimRead(claim()), reading, Action::Plan(claim())),
            (reading, Input::Planned, executing, Action::Execute),
            (reading, Input::NeedsMigChange(claim()), changing, Action::ChangeMig(claim())),
            (
                reading,
                Input::Blocked(held().0, held().1),
                waiting,
                Action::Wait(held().0, held().1),
            ),
            (reading, Input::Failed(why().into()), idle, refuse()),
        ]);
    }
    rows
}

/// All transitions that change the state or have an action.
fn rows(deadline: Deadline) -> Vec<Row> {
    let refuse = || Action::Refuse(why().into());
    let (nothing, started) = (State::Idle(NOTHING), State::Idle(STARTED));
    let completed = State::Idle(COMPLETED);
    let mut rows = vec![
        (State::Completing, Input::Done, completed, Action::Reply),
        (State::Completing, Input::RecordFailed(why()), started, refuse()),
        (completed, Input::Prepare, State::Comparing, Action::Compare),
        (State::Comparing, Input::Unchanged, State::Checking, Action::Execute),
        (State::Comparing, Input::Reallocated, State::UndoingSteps(COMPLETED), Action::UndoSteps),
        (State::Checking, Input::Done, completed, Action::Reply),
        (State::Checking, Input::Failed(why().into()), completed, refuse()),
        (completed, Input::Check, State::Restoring, Action::Restore),
        (State::Restoring, Input::Done, completed, Action::LogDocumentError(None)),
        (
            State::Restoring,
            Input::Failed(why().into()),
            completed,
            Action::LogDocumentError(Some(why())),
        ),
        (State::UndoingSteps(NOTHING), Input::Done, nothing, Action::Release),
        (
            State::UndoingSteps(NOTHING),
            Input::Failed(why().into()),
            nothing,
            Action::RefuseRelease(why()),
        ),
        (State::DroppingRecord, Input::Done, nothing, Action::Release),
        (State::DroppingRecord, Input::RecordFailed(why()), started, Action::RefuseRelease(why())),
    ];
    for before in [NOTHING, STARTED] {
        rows.extend(preparing(before, deadline));
    }
    for known in [STARTED, COMPLETED] {
        rows.extend([
            (State::UndoingSteps(known), Input::Done, State::DroppingRecord, Action::Record),
            (
                State::UndoingSteps(known),
                Input::Failed(why().into()),
                started,
                Action::RefuseRelease(why()),
            ),
        ]);
    }
    for known in [NOTHING, STARTED, COMPLETED] {
        let removing = State::UndoingSteps(known);
        rows.push((State::Idle(known), Input::Release, removing, Action::UndoSteps));
    }
    rows
}

#[test]
fn every_transition_is_in_the_table_and_late_inputs_change_nothing() {
    let deadline = Deadline::after(Duration::from_secs(9));
    let mut rows = rows(deadline);
    for state in states(deadline) {
        for input in inputs(deadline) {
            let row = rows.iter().position(|(from, by, ..)| *from == state && *by == input);
            let (to, action) = row.map_or((state, Action::None), |at| {
                let (_, _, to, action) = rows.swap_remove(at);
                (to, action)
            });
            assert_eq!(state.transition(input.clone()), (to, action), "{state:?} {input:?}");
        }
    }
    assert!(rows.is_empty(), "unreachable or repeated rows: {rows:?}");
}

#[test]
fn a_record_is_dropped_only_after_removal_or_if_no_step_was_begun() {
    let deadline = Deadline::after(Duration::from_secs(9));
    for state in states(deadline) {
        for input in inputs(deadline) {
            let (next, action) = state.transition(input.clone());
            let drops_record = state.recorded_stage().is_some() && next.recorded_stage().is_none();
            let was_removed = matches!((state, &input), (State::UndoingSteps(_), Input::Done));
            let was_not_begun = matches!(action, Action::RollBack(_));
            assert!(!drops_record || was_removed || was_not_begun, "{state:?} {input:?}");
        }
    }
}

#[test]
fn a_claim_is_completed_after_its_steps_and_answered_after_its_record() {
    let deadline = Deadline::after(Duration::from_secs(9));
    for state in states(deadline) {
        for input in inputs(deadline) {
            let (next, action) = state.transition(input.clone());
            if next.recorded_stage() == COMPLETED && state.recorded_stage() != COMPLETED {
                assert!(matches!((state, &input), (State::Executing(_), Input::Done)), "{state:?}");
            }
            if action == Action::Reply {
                let is_recorded = matches!(state, State::Completing | State::Checking);
                assert!(is_recorded && input == Input::Done, "{state:?} {input:?}");
            }
        }
    }
}
