//! Table of all transitions of a claim; no other state and input changes anything.

use std::time::Duration;

use windlass_allocations::ledger::ClaimRef;

use super::*;

const ABSENT: RecordedStage = None;

/// A transition: old state, input, new state, action.
type Row = (State, Input, State, Action);

fn err() -> String {
    "error".to_owned()
}

fn claim() -> Box<Claim> {
    let [namespace, name, uid] = ["ns", "c", "u"].map(ToOwned::to_owned);
    let reference = ClaimRef { namespace, name, uid };
    Claim { reference, pod_claim_name: "c".to_owned(), results: Vec::new(), configs: Vec::new() }
        .into()
}

fn states(deadline: Deadline) -> Vec<State> {
    let mut states = vec![
        State::Comparing,
        State::Completing,
        State::Checking,
        State::Restoring,
        State::DroppingRecord,
        State::Idle(COMPLETED),
        State::UndoingSteps(COMPLETED),
    ];
    for stage in [ABSENT, STARTED] {
        states.extend([
            State::Idle(stage),
            State::Reading(stage, None),
            State::Reading(stage, Some(deadline)),
            State::Waiting(stage, deadline),
            State::ChangingMig(stage),
            State::Executing(stage),
            State::UndoingSteps(stage),
        ]);
    }
    states
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
        Input::Failed(err().into()),
        Input::RecordFailed(err()),
    ]
}

/// Transitions of the preparation of a claim with this stage in its record.
fn preparing(stage: RecordedStage, deadline: Deadline) -> Vec<Row> {
    let refuse = || Action::Refuse(err().into());
    let (idle, started) = (State::Idle(stage), State::Idle(STARTED));
    let (waiting, executing) = (State::Waiting(stage, deadline), State::Executing(stage));
    let (changing, reading_again) =
        (State::ChangingMig(stage), State::Reading(stage, Some(deadline)));
    let unrecorded = match stage {
        None => (State::Idle(ABSENT), Action::RollBack(err())),
        Some(_) => (started, refuse()),
    };
    let mut rows = vec![
        (idle, Input::Prepare, State::Reading(stage, None), Action::Read),
        (waiting, Input::Released(deadline), reading_again, Action::Read),
        (waiting, Input::Release, idle, Action::Abandon),
        (waiting, Input::Abandoned, idle, Action::Abandon),
        (
            changing,
            Input::MigChanged(claim()),
            State::ChangingMig(STARTED),
            Action::Replan(claim()),
        ),
        (changing, Input::Planned, executing, Action::Execute),
        (changing, Input::Failed(err().into()), started, refuse()),
        (changing, Input::RecordFailed(err()), unrecorded.0, unrecorded.1.clone()),
        (executing, Input::Done, State::Completing, Action::Record),
        (executing, Input::Failed(err().into()), started, refuse()),
        (executing, Input::RecordFailed(err()), unrecorded.0, unrecorded.1),
    ];
    for reading in [State::Reading(stage, None), reading_again] {
        let blocked = || (Blocker::ShareHolders, deadline);
        rows.extend([
            (reading, Input::Reallocated, State::UndoingSteps(stage), Action::UndoSteps),
            (reading, Input::ClaimRead(claim()), reading, Action::Plan(claim())),
            (reading, Input::Planned, executing, Action::Execute),
            (reading, Input::NeedsMigChange(claim()), changing, Action::ChangeMig(claim())),
            (
                reading,
                Input::Blocked(blocked().0, blocked().1),
                waiting,
                Action::Wait(blocked().0, blocked().1),
            ),
            (reading, Input::Failed(err().into()), idle, refuse()),
        ]);
    }
    rows
}

/// All transitions that change the state or have an action.
fn rows(deadline: Deadline) -> Vec<Row> {
    let refuse = || Action::Refuse(err().into());
    let (unrecorded, started) = (State::Idle(ABSENT), State::Idle(STARTED));
    let completed = State::Idle(COMPLETED);
    let mut rows = vec![
        (State::Completing, Input::Done, completed, Action::Reply),
        (State::Completing, Input::RecordFailed(err()), started, refuse()),
        (completed, Input::Prepare, State::Comparing, Action::Compare),
        (State::Comparing, Input::Unchanged, State::Checking, Action::Execute),
        (State::Comparing, Input::Reallocated, State::UndoingSteps(COMPLETED), Action::UndoSteps),
        (State::Checking, Input::Done, completed, Action::Reply),
        (State::Checking, Input::Failed(err().into()), completed, refuse()),
        (completed, Input::Check, State::Restoring, Action::Restore),
        (State::Restoring, Input::Done, completed, Action::LogDocumentError(None)),
        (
            State::Restoring,
            Input::Failed(err().into()),
            completed,
            Action::LogDocumentError(Some(err())),
        ),
        (State::UndoingSteps(ABSENT), Input::Done, unrecorded, Action::Release),
        (
            State::UndoingSteps(ABSENT),
            Input::Failed(err().into()),
            unrecorded,
            Action::RefuseRelease(err()),
        ),
        (State::DroppingRecord, Input::Done, unrecorded, Action::Release),
        (State::DroppingRecord, Input::RecordFailed(err()), started, Action::RefuseRelease(err())),
    ];
    for stage in [ABSENT, STARTED] {
        rows.extend(preparing(stage, deadline));
    }
    for stage in [STARTED, COMPLETED] {
        rows.extend([
            (State::UndoingSteps(stage), Input::Done, State::DroppingRecord, Action::Record),
            (
                State::UndoingSteps(stage),
                Input::Failed(err().into()),
                started,
                Action::RefuseRelease(err()),
            ),
        ]);
    }
    for stage in [ABSENT, STARTED, COMPLETED] {
        let undoing = State::UndoingSteps(stage);
        rows.push((State::Idle(stage), Input::Release, undoing, Action::UndoSteps));
    }
    rows
}

#[test]
fn every_transition_is_in_the_table_and_late_inputs_change_nothing() {
    let deadline = Deadline::after(Duration::from_secs(9));
    let mut rows = rows(deadline);
    for state in states(deadline) {
        for input in inputs(deadline) {
            let row =
                rows.iter().position(|(from, received, ..)| *from == state && *received == input);
            let (to, action) = row.map_or((state, Action::None), |index| {
                let (_, _, to, action) = rows.swap_remove(index);
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
