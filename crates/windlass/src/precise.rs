//! Precise waits of a thread, which end within some microseconds. tokio's timer has a resolution of a millisecond.

use std::{num::NonZeroU64, thread, time::Instant};

use rustix::thread::set_current_timer_slack;

/// Minimises the timer slack of this thread. If the kernel refuses, the thread may wake 50 us late.
pub(crate) fn minimise_timer_slack() {
    let _ = set_current_timer_slack(NonZeroU64::new(1));
}

/// Blocks this thread until an instant.
pub(crate) fn sleep_until(deadline: Instant) {
    #[expect(
        clippy::disallowed_methods,
        reason = "the wait is the work: of a device, a link or a source"
    )]
    thread::sleep(deadline.saturating_duration_since(Instant::now()));
}
