//! Process of a program, in its own process group, with captured output and measured resources.

mod load;

use std::{
    collections::VecDeque,
    ffi::OsString,
    fs, io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};
use serde::Serialize;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, BufReader},
    process::{Child, Command},
    task::JoinSet,
    time::timeout,
};

pub(crate) use self::load::Load;

/// Number of output lines that are kept.
const KEPT_LINES: usize = 12;

/// Time limit for reading the remaining output of a program that has exited.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);

/// Running program. Drop kills its process group.
#[derive(Debug)]
pub struct Process {
    child: Child,
    group: Pid,
    lines_kept: Arc<Mutex<VecDeque<String>>>,
    readers: JoinSet<()>,
}

/// Resources in use by the processes of a group, in total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// Resident memory, in KiB (`VmRSS` of proc(5)).
    pub resident_kib: u64,
    /// Open descriptors.
    pub descriptors: usize,
    /// Threads.
    pub threads: u64,
}

/// Free loopback address, for a process that listens at an address which others have to know before it starts.
pub fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

// === impl Process ===

impl Process {
    /// Starts the program in a folder, with the environment of this process.
    pub fn start(argv: &[OsString], folder: &Path) -> io::Result<Self> {
        let (program, arguments) = argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        command.args(arguments);
        Self::spawn(command, folder)
    }

    pub(crate) fn spawn(mut command: Command, folder: &Path) -> io::Result<Self> {
        command.current_dir(folder).process_group(0).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let id = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let group = id.ok_or_else(|| io::Error::other("the program ended at once"))?;
        let lines_kept = Arc::new(Mutex::new(VecDeque::new()));
        let mut readers = JoinSet::new();
        if let Some(output) = child.stdout.take() {
            readers.spawn(read_lines(output, Arc::clone(&lines_kept)));
        }
        if let Some(errors) = child.stderr.take() {
            readers.spawn(read_lines(errors, Arc::clone(&lines_kept)));
        }
        Ok(Self { child, group, lines_kept, readers })
    }

    /// Last lines of its standard output and error.
    pub fn last_output(&self) -> Vec<String> {
        self.lines_kept.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// Last lines of its output after its exit. Waits at most a second for the remaining output, because a surviving
    /// child may hold it open.
    pub(crate) async fn last_output_after_exit(&mut self) -> Vec<String> {
        let read_all = async { while self.readers.join_next().await.is_some() {} };
        let _ = timeout(DRAIN_LIMIT, read_all).await;
        self.last_output()
    }

    /// Exit status, if it has exited.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        // The call fails only if another caller has reaped the child, and there is no other caller.
        self.child.try_wait().ok().flatten()
    }

    /// Process id, also the id of its group.
    pub fn id(&self) -> Pid {
        self.group
    }

    /// Sends a signal to the program and its children.
    pub fn signal(&self, signal: Signal) {
        // The call fails if the whole group has exited.
        let _ = kill_process_group(self.group, signal);
    }

    /// Waits for its exit, up to the limit.
    pub async fn wait_for_exit(&mut self, limit: Duration) -> Option<ExitStatus> {
        timeout(limit, self.child.wait()).await.ok()?.ok()
    }

    /// Kills it with its children, and waits for its exit.
    pub async fn kill(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.child.wait().await;
    }

    /// Current resources of the program and its children.
    pub fn usage(&self) -> Usage {
        self.members().filter_map(|process| Usage::of(&process)).fold(Usage::default(), Usage::plus)
    }

    /// Scheduling times so far, of the threads of the program and its children.
    pub(crate) fn load(&self) -> Load {
        Load::of(self.members())
    }

    /// Scheduling times so far, of the threads of this process.
    pub(crate) fn own_load() -> Load {
        Load::of(["/proc/self"].into_iter())
    }

    /// Folders in `/proc` of the group's processes.
    fn members(&self) -> impl Iterator<Item = PathBuf> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|process| group_of(process) == Some(self.group))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

async fn read_lines(source: impl AsyncRead + Unpin, lines_kept: Arc<Mutex<VecDeque<String>>>) {
    let mut lines = BufReader::new(source).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let mut lines_kept = lines_kept.lock().unwrap_or_else(PoisonError::into_inner);
        if lines_kept.len() == KEPT_LINES {
            lines_kept.pop_front();
        }
        lines_kept.push_back(line);
    }
}

// === impl Usage ===

impl Usage {
    /// Usage of one process; `None` if it has just exited.
    fn of(process: &Path) -> Option<Self> {
        let status = fs::read_to_string(process.join("status")).ok()?;
        let number = |name| {
            let value = status.lines().find_map(|line| line.strip_prefix(name));
            value.and_then(|text| text.split_whitespace().next()?.parse().ok())
        };
        Some(Self {
            descriptors: fs::read_dir(process.join("fd")).map_or(0, Iterator::count),
            resident_kib: number("VmRSS:").unwrap_or(0),
            threads: number("Threads:")?,
        })
    }

    fn plus(self, other: Self) -> Self {
        Self {
            descriptors: self.descriptors + other.descriptors,
            resident_kib: self.resident_kib + other.resident_kib,
            threads: self.threads + other.threads,
        }
    }
}

/// Process group of a process, from `stat` of proc(5).
fn group_of(process: &Path) -> Option<Pid> {
    group_in(&fs::read_to_string(process.join("stat")).ok()?)
}

fn group_in(stat: &str) -> Option<Pid> {
    // Fields after the name: state, parent, group. The name may hold any character, so the search starts at its end.
    let group: i32 = stat.rsplit_once(')')?.1.split_whitespace().nth(2)?.parse().ok()?;
    // The kernel reports -1 for a process that is exiting.
    (group > 0).then(|| Pid::from_raw(group))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exiting_process_is_in_no_group() {
        let stat = |group: &str| format!("7 (a) b) S 1 {group} 9");
        assert_eq!(group_in(&stat("8")).map(Pid::as_raw_pid), Some(8));
        assert_eq!([group_in(&stat("0")), group_in(&stat("-1"))], [None, None]);
    }

    fn sh(script: &str) -> Process {
        let argv = ["sh", "-c", script].map(Into::into);
        Process::start(&argv, Path::new("/")).expect("sh runs")
    }

    #[tokio::test]
    async fn a_killed_program_loses_its_children_and_its_last_lines_are_kept() {
        let mut process = sh("echo said; sleep 60 & wait");
        let has_child = |process: &Process| process.usage().threads == 2;
        while !has_child(&process) || process.last_output().is_empty() {
            tokio::task::yield_now().await;
        }
        assert_eq!(process.last_output(), ["said"]);
        process.kill().await;
        while process.usage() != Usage::default() {
            tokio::task::yield_now().await;
        }
    }
}
