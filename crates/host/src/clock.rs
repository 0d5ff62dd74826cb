//! The agent's clock: wall time that never jumps.

use jiff::Timestamp;
use tokio::time::{Instant, sleep_until};

/// Clock of the agent: wall time at the start plus elapsed time.
///
/// Adjustments of the system clock neither shorten nor prolong quiet periods. Tests that pause tokio's time
/// pause this clock too.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    wall: Timestamp,
    started: Instant,
}

impl Clock {
    /// A clock that shows this wall time now.
    pub fn starting_at(wall: Timestamp) -> Self {
        Self { wall, started: Instant::now() }
    }

    /// Current time.
    pub fn now(&self) -> Timestamp {
        self.wall.saturating_add(self.started.elapsed()).unwrap_or(Timestamp::MAX)
    }

    /// The instant of a wall time.
    pub fn instant_of(&self, time: Timestamp) -> Instant {
        let since_start = time.duration_since(self.wall);
        self.started + std::time::Duration::try_from(since_start).unwrap_or_default()
    }
}

/// Waits until a time. Returns at once if the time has come: tokio's timer would round up to a millisecond, which would
/// slow the start.
pub async fn wait_until(time: Instant) {
    if time > Instant::now() {
        sleep_until(time).await;
    }
}
