//! Darwin3 boards behind a gateway node: the rule that offers them, and waits for their events.

use std::{future::ready, time::Duration};

use windlass_config::{CleanupSteps, Find, Give, SourceRule, Step, StepAction};
use windlass_machine::{Board, BoardEvent};

use crate::wait::until;

/// Clock of a board before each allocation, in MHz.
pub const MHZ: u32 = 200;

/// Rule that resets boards and sets their clock before a container starts, and resets them after it ends. `timeout`
/// limits each step.
pub fn board_rule(boards: &[Board], timeout: Duration) -> SourceRule {
    let get = |target: String| {
        let url = format!("http://{{endpoint}}/{target}");
        Step { action: StepAction::Http(url), timeout }
    };
    let reset = || get("chip_reset".to_owned());
    let cleanup = CleanupSteps {
        prepare: vec![reset(), get(format!("set_frequency?freq={MHZ}"))],
        release: vec![reset()],
    };
    let find = Find::Endpoints(boards.iter().map(|board| board.control().to_string()).collect());
    let new = SourceRule::new("darwin3".parse().expect("a name"), find);
    let env = [("DARWIN3_CONTROL".to_owned(), "http://{endpoint}".to_owned())].into();
    let give = Give { env, ..Give::default() };
    SourceRule { resource: "zj.com/darwin3".parse().ok(), cleanup, give, ..new }
}

/// Waits for as many events of a board as expected, and compares them.
pub async fn happens(board: &Board, expected: &[BoardEvent]) {
    let mut events = Vec::new();
    let all = || {
        events.extend(board.take_events());
        ready(if events.len() < expected.len() { Err(events.clone()) } else { Ok(events.clone()) })
    };
    assert_eq!(until("what happens to a board", all).await, expected);
}
