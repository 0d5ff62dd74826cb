//! Darwin3 boards behind a gateway node: their source rule, and a wait for their events.

use std::{future::ready, time::Duration};

use windlass_config::{CleanupSteps, DiscoveryRule, EditTemplates, SourceRule, Step, StepAction};
use windlass_machine::{Board, BoardEvent};

use crate::wait::until;

/// Clock frequency that boards get before each container starts, in MHz.
pub const MHZ: u32 = 200;

/// Cleanup steps of a board with an unknown history, before a container starts.
pub const UNKNOWN_HISTORY_STEPS: [BoardEvent; 3] =
    [BoardEvent::Reset, BoardEvent::Reset, BoardEvent::Frequency(MHZ)];

/// Source rule of boards. A container's boards are reset and get [`MHZ`] before it starts, and are reset after it ends.
/// `timeout` applies to each step.
pub fn board_rule(boards: &[Board], timeout: Duration) -> SourceRule {
    let http_step = |target: String| {
        let url = format!("http://{{endpoint}}/{target}");
        Step { action: StepAction::Http(url), timeout }
    };
    let reset = || http_step("chip_reset".to_owned());
    let cleanup = CleanupSteps {
        prepare: vec![reset(), http_step(format!("set_frequency?freq={MHZ}"))],
        release: vec![reset()],
    };
    let find =
        DiscoveryRule::Endpoints(boards.iter().map(|board| board.control().to_string()).collect());
    let rule = SourceRule::new("darwin3".parse().expect("a name"), find);
    let env = [("DARWIN3_CONTROL".to_owned(), "http://{endpoint}".to_owned())].into();
    let give = EditTemplates { env, ..EditTemplates::default() };
    SourceRule { resource: "zj.com/darwin3".parse().ok(), cleanup, give, ..rule }
}

/// Waits until a board has as many events as expected, and asserts that they are equal.
pub async fn expect_events(board: &Board, expected: &[BoardEvent]) {
    let mut events = Vec::new();
    let poll = || {
        events.extend(board.take_events());
        ready(if events.len() < expected.len() { Err(events.clone()) } else { Ok(events.clone()) })
    };
    assert_eq!(until("events of a board", poll).await, expected);
}
