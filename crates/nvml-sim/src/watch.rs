//! Waiting for the machine to change, without polling.

use std::{mem::MaybeUninit, os::fd::OwnedFd, path::Path, time::Duration};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::inotify,
    io::Errno,
};

use crate::status::{Answer, Status};

/// Tells when a file in a folder is replaced.
#[derive(Debug)]
pub(crate) struct Watch(OwnedFd);

// === impl Watch ===

impl Watch {
    /// Begins to watch. The kernel keeps what happens until [`Self::forget`], so a change between
    /// reading the state and waiting is not missed.
    pub(crate) fn new(folder: &Path) -> Answer<Self> {
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        // There are few inotify instances per user: fs.inotify.max_user_instances, often 128.
        let watch = inotify::init(flags).map_err(|_| Status::INSUFFICIENT_RESOURCES)?;
        inotify::add_watch(&watch, folder, inotify::WatchFlags::MOVED_TO)
            .map_err(|_| Status::OPERATING_SYSTEM)?;
        Ok(Self(watch))
    }

    /// Forgets the changes so far; the caller reads the state after this.
    pub(crate) fn forget(&self) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut changes = inotify::Reader::new(&self.0, &mut buffer);
        while changes.next().is_ok() {}
    }

    /// Waits for a change or the end of the time; without a time, for ever.
    pub(crate) fn wait(&self, time: Option<Duration>) -> Answer {
        let time = time.and_then(|time| Timespec::try_from(time).ok());
        let mut watched = [PollFd::new(&self.0, PollFlags::IN)];
        match poll(&mut watched, time.as_ref()) {
            // A signal: the caller looks at the state and at the clock, and comes back.
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(_) => Err(Status::OPERATING_SYSTEM),
        }
    }
}

/// Waits for a time, whatever happens.
pub(crate) fn pause(time: Duration) {
    let Ok(time) = Timespec::try_from(time) else { return };
    let _ = poll(&mut [], Some(&time));
}
