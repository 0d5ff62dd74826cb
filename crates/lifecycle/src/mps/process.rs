//! Process of an MPS daemon: start, search by the next agent, end.
//!
//! Process id and start time identify a process until the next boot. The daemon leads its own process
//! group, so that its children can be ended with it, and that a signal to the agent's group does not reach
//! it.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::{
    process::{Child, Command},
    time::sleep,
};
use windlass_host::{
    deadline,
    files::{self, MAX_BYTES, Symlinks, read_regular_text},
    own_process::start_time,
};

/// A daemon's process, running or not.
#[derive(Debug)]
pub(super) struct Process {
    identity: Identity,
    /// Set if this agent started the process.
    child: Option<Child>,
}

/// Process id, and start time in ticks since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    pid: Pid,
    start_ticks: u64,
}

/// A process in `/proc`.
struct ProcStat {
    identity: Identity,
    /// True if the process ended, but its parent has not waited for it.
    is_zombie: bool,
}

/// The process could not be ended.
#[derive(Debug, thiserror::Error)]
#[error("process {0:?} did not end within {1:?} of being killed; the driver holds it")]
pub(super) struct KillError(Pid, Duration);

/// The agent's own `/proc`: process ids are those of its namespace.
const PROC: &str = "/proc";

/// Poll interval for an ending process.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

// === impl Process ===

impl Process {
    /// Starts a daemon that outlives the agent, and records it. Its output goes to `log`.
    pub(super) fn start(mut command: Command, log: &Path, record: &Path) -> io::Result<Self> {
        let log = fs::File::create(log)?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
        let child = command.spawn()?;
        let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let stat = pid.and_then(stat).ok_or(io::ErrorKind::NotFound)?;
        let process = Self { identity: stat.identity, child: Some(child) };
        let Identity { pid, start_ticks } = process.identity;
        // The next agent could not find an unrecorded daemon, so it must not run.
        match files::replace(
            record,
            format!("{} {start_ticks}\n", pid.as_raw_nonzero()).as_bytes(),
            files::FileAccess::Owner,
        ) {
            Ok(_) => Ok(process),
            Err(error) => {
                process.signal(Signal::KILL);
                Err(error)
            }
        }
    }

    /// The recorded daemon, if it still runs.
    pub(super) fn find(record: &Path) -> Option<Self> {
        let text = read_regular_text(record, Symlinks::Refused, MAX_BYTES).ok()?;
        let (pid, start_ticks) = text.trim().split_once(' ')?;
        let identity = Identity {
            pid: Pid::from_raw(pid.parse().ok()?)?,
            start_ticks: start_ticks.parse().ok()?,
        };
        let process = Self { identity, child: None };
        process.is_alive().then_some(process)
    }

    /// Waits for the end of the process, and returns its reason. Never returns for an adopted daemon: the next check
    /// notices its end.
    pub(super) async fn wait_exit(&mut self) -> String {
        let Some(child) = &mut self.child else { return std::future::pending().await };
        match child.wait().await {
            Ok(status) => format!("the daemon ended with {status}"),
            Err(error) => format!("the daemon cannot be waited for: {error}"),
        }
    }

    pub(super) fn pid(&self) -> Pid {
        self.identity.pid
    }

    /// True if the process runs.
    pub(super) fn is_alive(&self) -> bool {
        stat(self.identity.pid)
            .is_some_and(|stat| stat.identity == self.identity && !stat.is_zombie)
    }

    /// Waits for the end of the process without a signal. Returns true if it ended in time.
    pub(super) async fn wait_exit_within(&self, grace: Duration) -> bool {
        let end = async {
            while self.is_alive() {
                sleep(POLL_INTERVAL).await;
            }
        };
        deadline::timeout(grace, end).await.is_ok()
    }

    /// Ends the process by SIGTERM or else SIGKILL, then its children. A child of this agent is waited for last, so
    /// that the kernel cannot reuse the id earlier.
    pub(super) async fn end(mut self, grace: Duration) -> Result<(), KillError> {
        self.signal(Signal::TERM);
        if !self.wait_exit_within(grace).await {
            self.signal(Signal::KILL);
            if !self.wait_exit_within(grace).await {
                return Err(KillError(self.identity.pid, grace));
            }
        }
        // An empty group is gone already.
        let _ = kill_process_group(self.identity.pid, Signal::KILL);
        if let Some(child) = &mut self.child {
            let _ = child.wait().await;
        }
        Ok(())
    }

    fn signal(&self, signal: Signal) {
        if self.is_alive() {
            // The process may have ended since the check.
            let _ = kill_process(self.identity.pid, signal);
        }
    }
}

/// Identity and state of the process with this id (`proc_pid_stat(5)`).
fn stat(pid: Pid) -> Option<ProcStat> {
    let path: PathBuf = [PROC, &pid.as_raw_nonzero().to_string(), "stat"].iter().collect();
    let stat = fs::read_to_string(path).ok()?;
    let start_ticks = start_time(&stat)?;
    // The state is behind the name, which may contain anything.
    let (_, state) = stat.rsplit_once(") ")?;
    let is_zombie = state.starts_with(['Z', 'X']);
    Some(ProcStat { identity: Identity { pid, start_ticks }, is_zombie })
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    const GRACE: Duration = Duration::from_millis(300);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    fn start(dir: &Path, script: &str) -> Process {
        let process = Process::start(shell(script), &dir.join("log"), &dir.join("record"));
        process.expect("started")
    }

    #[tokio::test]
    async fn a_process_is_found_again_until_it_has_ended() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let record = dir.path().join("record");
        assert!(Process::find(&record).is_none(), "there is no record");
        let mut process = start(dir.path(), "exit 3");
        assert_eq!(process.wait_exit().await, "the daemon ended with exit status: 3");
        assert!(Process::find(&record).is_none(), "it has ended");
        let process = start(dir.path(), "kill -STOP $$");
        let recorded = Process::find(&record).expect("found");
        assert_eq!(recorded.identity, process.identity);
        recorded.end(GRACE).await.expect("ended");
        assert!(Process::find(&record).is_none());
    }

    #[tokio::test]
    async fn a_later_process_with_the_same_id_is_another_one() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let process = start(dir.path(), "kill -STOP $$");
        let Identity { pid, start_ticks } = process.identity;
        let record = dir.path().join("other");
        fs::write(&record, format!("{} {}\n", pid.as_raw_nonzero(), start_ticks + 1))
            .expect("written");
        assert!(Process::find(&record).is_none());
        process.end(GRACE).await.expect("ended");
    }

    #[tokio::test]
    async fn a_process_that_ignores_sigterm_is_killed_with_its_children() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let fifo = dir.path().join("fifo");
        let script = format!(
            "mkfifo {0}; trap '' TERM; (read line <>{0}) & echo $! >{0}.child; read line <>{0}",
            fifo.display()
        );
        let process = start(dir.path(), &script);
        let child = dir.path().join("fifo.child");
        while !fs::read_to_string(&child).is_ok_and(|text| text.ends_with('\n')) {
            tokio::task::yield_now().await;
        }
        let child = fs::read_to_string(&child).expect("written").trim().parse().expect("a number");
        let child = Pid::from_raw(child).expect("a process");
        assert!(stat(child).is_some());
        process.end(GRACE).await.expect("ended");
        // The init process reaps an orphan; without one, the orphan stays a zombie.
        let deadline = Instant::now() + Duration::from_secs(10);
        while stat(child).is_some_and(|stat| !stat.is_zombie) {
            assert!(Instant::now() < deadline, "the child still runs");
            tokio::task::yield_now().await;
        }
    }
}
