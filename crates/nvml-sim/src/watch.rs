//! Waiting for changes of the machine, without periodic polling and without a thread.
//!
//! The kernel limits the inotify instances of a user (`fs.inotify.max_user_instances`, often 128), so all waiting
//! threads of a process share one. One thread polls the instance for all, and wakes the others when a file is
//! replaced. When its own deadline passes first, another thread takes over the polling:
//!
//! ```text
//!                  no thread polls                 the folder changed
//! reads the state ──────────────────> polls ───────────────────────────> generation + 1, wakes all
//!        │                              │ its deadline passes
//!        │ another thread polls         v
//!        └──────────────────> sleeps <── wakes all: one of them polls
//! ```

use std::{
    mem::MaybeUninit,
    os::fd::OwnedFd,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::inotify,
    io::Errno,
};

use crate::{
    library,
    status::{NvmlResult, Status},
};

static SHARED: Mutex<Shared> = Mutex::new(Shared { generation: 0, watch: None, is_polled: false });
static CHANGED: Condvar = Condvar::new();

struct Shared {
    /// Number of observed changes of the folder.
    generation: u64,
    watch: Option<Arc<OwnedFd>>,
    /// True while a thread polls for all.
    is_polled: bool,
}

/// Generation before a read of the state. A wait ends at the first change after it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Generation(u64);

// === impl Generation ===

impl Generation {
    /// Starts the watch if necessary, and returns the current generation. The kernel queues all later changes.
    pub(crate) fn current() -> NvmlResult<Self> {
        let mut shared = lock();
        if shared.watch.is_none() {
            shared.watch = Some(Arc::new(watch()?));
        }
        Ok(Self(shared.generation))
    }

    /// Waits for a change or the deadline. Without a deadline, waits indefinitely.
    pub(crate) fn wait(self, deadline: Option<Instant>) -> NvmlResult {
        let mut shared = lock();
        while shared.generation == self.0 {
            let remaining =
                deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if remaining == Some(Duration::ZERO) {
                return Ok(());
            }
            shared = if shared.is_polled {
                sleep(shared, remaining)
            } else {
                poll_for_all(shared, remaining)?
            };
        }
        Ok(())
    }
}

/// Ends the watch if no thread polls, and wakes the sleeping threads. The next wait then starts a new watch.
pub(crate) fn stop_watch() {
    let mut shared = lock();
    if !shared.is_polled {
        shared.watch = None;
    }
    // Sleeping threads notice the shutdown at once, the polling thread at the next change.
    shared.generation += 1;
    CHANGED.notify_all();
}

/// Sleeps for a fixed time, regardless of changes.
pub(crate) fn sleep_for(time: Duration) {
    let Ok(time) = Timespec::try_from(time) else { return };
    let _ = poll(&mut [], Some(&time));
}

fn sleep(
    shared: MutexGuard<'static, Shared>,
    remaining: Option<Duration>,
) -> MutexGuard<'static, Shared> {
    match remaining {
        Some(remaining) => {
            CHANGED.wait_timeout(shared, remaining).unwrap_or_else(PoisonError::into_inner).0
        }
        None => CHANGED.wait(shared).unwrap_or_else(PoisonError::into_inner),
    }
}

/// Polls without the lock, and always wakes the others afterwards. They check the generation, and take over the polling
/// if necessary.
fn poll_for_all(
    mut shared: MutexGuard<'static, Shared>,
    remaining: Option<Duration>,
) -> NvmlResult<MutexGuard<'static, Shared>> {
    let watch = match &shared.watch {
        Some(watch) => Arc::clone(watch),
        None => Arc::clone(shared.watch.insert(Arc::new(watch()?))),
    };
    shared.is_polled = true;
    drop(shared);
    let remaining = remaining.and_then(|remaining| Timespec::try_from(remaining).ok());
    let result = poll(&mut [PollFd::new(&watch, PollFlags::IN)], remaining.as_ref());
    let mut shared = lock();
    shared.is_polled = false;
    CHANGED.notify_all();
    match result {
        Ok(0) | Err(Errno::INTR) => {}
        Ok(_) => {
            drain(&watch);
            shared.generation += 1;
        }
        Err(_) => return Err(Status::OPERATING_SYSTEM),
    }
    Ok(shared)
}

/// Watches the machine's folder for replaced files.
fn watch() -> NvmlResult<OwnedFd> {
    let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
    let watch = inotify::init(flags).map_err(|_| Status::INSUFFICIENT_RESOURCES)?;
    inotify::add_watch(&watch, library::machine_dir()?, inotify::WatchFlags::MOVED_TO)
        .map_err(|_| Status::OPERATING_SYSTEM)?;
    Ok(watch)
}

/// Discards the queued changes. Woken threads read the state afterwards.
fn drain(watch: &OwnedFd) {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut changes = inotify::Reader::new(watch, &mut buffer);
    while changes.next().is_ok() {}
}

/// Locks the state. A poisoned lock guards a valid value, because no code between two field writes panics.
fn lock() -> MutexGuard<'static, Shared> {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}
