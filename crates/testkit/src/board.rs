//! Darwin3 boards that a node is the gateway of: how they are offered, and what happens to them.

use std::{future::ready, time::Duration};

use windlass_config::{Find, Give, Handover, SourceRule, Step, StepAction};
use windlass_machine::{Board, BoardEvent};

use crate::wait::until;

/// The clock that a board is set to before a container has it.
pub const MHZ: u32 = 200;

/// Boards that are reset and set to their clock before a container has them, and reset after it. A step lasts so
/// long at most.
pub fn board_rule(boards: &[Board], timeout: Duration) -> SourceRule {
    let get = |target: String| {
        let url = format!("http://{{endpoint}}/{target}");
        Step { action: StepAction::Http(url), timeout }
    };
    let reset = || get("chip_reset".to_owned());
    let handover = Handover {
        prepare: vec![reset(), get(format!("set_frequency?freq={MHZ}"))],
        release: vec![reset()],
    };
    let find = Find::Endpoints(boards.iter().map(|board| board.control().to_string()).collect());
    let new = SourceRule::new("darwin3".parse().expect("a name"), find);
    let env = [("DARWIN3_CONTROL".to_owned(), "http://{endpoint}".to_owned())].into();
    let give = Give { env, ..Give::default() };
    SourceRule { resource: "zj.com/darwin3".parse().ok(), handover, give, ..new }
}

/// Waits until as much as expected has happened to a board, and holds it against that.
pub async fn happens(board: &Board, expected: &[BoardEvent]) {
    let mut events = Vec::new();
    let all = || {
        events.extend(board.take_events());
        ready(if events.len() < expected.len() { Err(events.clone()) } else { Ok(events.clone()) })
    };
    assert_eq!(until("what happens to a board", all).await, expected);
}
