//! Waits of a thread that end within some microseconds: tokio's timer has whole milliseconds.

use std::{num::NonZeroU64, thread, time::Instant};

use rustix::thread::set_current_timer_slack;

/// Lets the kernel wake this thread on time. Where that is refused, it may wake 50 us late.
pub(crate) fn be_woken_on_time() {
    let _ = set_current_timer_slack(NonZeroU64::new(1));
}

/// Blocks this thread until then.
pub(crate) fn sleep_until(until: Instant) {
    #[expect(
        clippy::disallowed_methods,
        reason = "the wait is the work: of a device, a link or a source"
    )]
    thread::sleep(until.saturating_duration_since(Instant::now()));
}
