//! Waiting for changes of the machine, without periodic polling and without a thread.
//!
//! The kernel gives each user few inotify instances (`fs.inotify.max_user_instances`, often 128), so all
//! waiters of a process share one. One waiter sleeps in the kernel for all, and wakes the others when a
//! file is replaced. When its own deadline passes first, another waiter takes over:
//!
//! ```text
//!                    nobody polls                  the folder changed
//! reads the state ──────────────────> polls ───────────────────────────> generation + 1, wakes all
//!        │                              │ its time is over
//!        │ another polls                v
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
    status::{Answer, Status},
};

static SHARED: Mutex<Shared> = Mutex::new(Shared { generation: 0, watch: None, polled: false });
static CHANGED: Condvar = Condvar::new();

struct Shared {
    /// Number of observed changes of the folder.
    generation: u64,
    watch: Option<Arc<OwnedFd>>,
    /// True while a waiter sleeps in the kernel for all.
    polled: bool,
}

/// Moment before a read of the state: a later change ends the wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment(u64);

// === impl Moment ===

impl Moment {
    /// Starts the watch if necessary. The kernel queues changes from then on.
    pub(crate) fn now() -> Answer<Self> {
        let mut shared = lock();
        if shared.watch.is_none() {
            shared.watch = Some(Arc::new(watch()?));
        }
        Ok(Self(shared.generation))
    }

    /// Waits for a change or the deadline; without a deadline, for ever.
    pub(crate) fn wait(self, deadline: Option<Instant>) -> Answer {
        let mut shared = lock();
        while shared.generation == self.0 {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(());
            }
            shared = if shared.polled { sleep(shared, left) } else { poll_for_all(shared, left)? };
        }
        Ok(())
    }
}

/// Ends the watch if idle; the next waiter starts a new one.
pub(crate) fn end() {
    let mut shared = lock();
    if !shared.polled {
        shared.watch = None;
    }
    // Sleeping waiters see the shutdown at once; the polling waiter sees it at the next change.
    shared.generation += 1;
    CHANGED.notify_all();
}

/// Sleeps for a fixed time, regardless of changes.
pub(crate) fn pause(time: Duration) {
    let Ok(time) = Timespec::try_from(time) else { return };
    let _ = poll(&mut [], Some(&time));
}

fn sleep(
    shared: MutexGuard<'static, Shared>,
    left: Option<Duration>,
) -> MutexGuard<'static, Shared> {
    match left {
        Some(left) => CHANGED.wait_timeout(shared, left).unwrap_or_else(PoisonError::into_inner).0,
        None => CHANGED.wait(shared).unwrap_or_else(PoisonError::into_inner),
    }
}

/// Sleeps in the kernel without the lock, and always wakes the others. They check the generation, and take
/// over the polling if necessary.
fn poll_for_all(
    mut shared: MutexGuard<'static, Shared>,
    left: Option<Duration>,
) -> Answer<MutexGuard<'static, Shared>> {
    let watch = match &shared.watch {
        Some(watch) => Arc::clone(watch),
        None => Arc::clone(shared.watch.insert(Arc::new(watch()?))),
    };
    shared.polled = true;
    drop(shared);
    let left = left.and_then(|left| Timespec::try_from(left).ok());
    let polled = poll(&mut [PollFd::new(&watch, PollFlags::IN)], left.as_ref());
    let mut shared = lock();
    shared.polled = false;
    CHANGED.notify_all();
    match polled {
        Ok(0) | Err(Errno::INTR) => {}
        Ok(_) => {
            forget(&watch);
            shared.generation += 1;
        }
        Err(_) => return Err(Status::OPERATING_SYSTEM),
    }
    Ok(shared)
}

/// Watches the machine's folder for replaced files.
fn watch() -> Answer<OwnedFd> {
    let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
    let watch = inotify::init(flags).map_err(|_| Status::INSUFFICIENT_RESOURCES)?;
    inotify::add_watch(&watch, library::folder()?, inotify::WatchFlags::MOVED_TO)
        .map_err(|_| Status::OPERATING_SYSTEM)?;
    Ok(watch)
}

/// Drains queued changes from the kernel; woken waiters read the state afterwards.
fn forget(watch: &OwnedFd) {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut changes = inotify::Reader::new(watch, &mut buffer);
    while changes.next().is_ok() {}
}

/// A poisoned lock guards a valid value: nothing panics between two field writes.
fn lock() -> MutexGuard<'static, Shared> {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}
