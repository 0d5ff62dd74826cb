//! The agent's clock: wall time that never jumps.

use jiff::Timestamp;
use tokio::time::{Instant, sleep_until};

/// Wall time as it was at the start, plus the time that has passed since: an adjustment of the
/// machine's clock neither ends a quiet period early nor makes it last for ever, and a test that
/// pauses tokio's time pauses this clock too.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    wall: Timestamp,
    started: Instant,
}

impl Clock {
    /// Starts from the given wall time.
    pub fn starting_at(wall: Timestamp) -> Self {
        Self { wall, started: Instant::now() }
    }

    /// The time now.
    pub fn now(&self) -> Timestamp {
        self.wall.saturating_add(self.started.elapsed()).unwrap_or(Timestamp::MAX)
    }

    /// When tokio's clock will show that time.
    pub fn instant_of(&self, time: Timestamp) -> Instant {
        let since_start = time.duration_since(self.wall);
        self.started + std::time::Duration::try_from(since_start).unwrap_or_default()
    }
}

/// Waits until a time. One that has come is not waited for: tokio's timer rounds up to the next
/// millisecond, and would cost a start two of its ten.
pub async fn until(time: Instant) {
    if time > Instant::now() {
        sleep_until(time).await;
    }
}
