//! Resource use of the agent's own process, from its folder in `/proc`.

use std::fs;

use jiff::Timestamp;
use rustix::process::{Resource, getrlimit};

/// Resource use of this process. Values that the kernel does not give are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OwnProcess {
    /// User and system time of all threads.
    pub cpu_seconds: Option<f64>,
    /// Resident memory.
    pub resident_bytes: Option<u64>,
    /// Open file descriptors.
    pub open_fds: Option<u64>,
    /// Limit of open file descriptors; `None` without a limit.
    pub max_fds: Option<u64>,
}

/// Fields of `/proc/<pid>/stat` after the program's name, as indexes from the state, which is field 3 (proc(5)).
const USER_TIME: usize = 11;
const SYSTEM_TIME: usize = 12;
const START_TIME: usize = 19;

/// Ticks per second in `/proc`: `USER_HZ` of `asm-generic/param.h`, for every architecture of the agent.
const TICKS: f64 = 100.0;

const KIB: u64 = 1024;

// === impl OwnProcess ===

impl OwnProcess {
    /// Reads the current values.
    pub fn read() -> Self {
        let resident = read_self("status").and_then(|status| resident_bytes(&status));
        // The count includes the descriptor of this folder, which is subtracted below.
        let fds = fs::read_dir("/proc/self/fd").ok().map(|fds| fds.count() as u64);
        Self {
            cpu_seconds: read_self("stat").and_then(|stat| cpu_seconds(&stat)),
            resident_bytes: resident,
            open_fds: fds.map(|fds| fds.saturating_sub(1)),
            max_fds: getrlimit(Resource::Nofile).current,
        }
    }

    /// Start of this process in seconds since 1970. Two calls may differ by a hundredth of a second.
    pub fn start_seconds(now: Timestamp) -> Option<f64> {
        let uptime = fs::read_to_string("/proc/uptime").ok()?;
        let uptime: f64 = uptime.split(' ').next()?.parse().ok()?;
        let start_uptime = ticks(start_time(&read_self("stat")?)?);
        Some(now.as_duration().as_secs_f64() - uptime + start_uptime)
    }
}

fn read_self(file: &str) -> Option<String> {
    fs::read_to_string(format!("/proc/self/{file}")).ok()
}

/// Start time of a process in ticks since the boot, from its `stat`.
pub fn start_time(stat: &str) -> Option<u64> {
    field(stat, START_TIME)
}

fn cpu_seconds(stat: &str) -> Option<f64> {
    Some(ticks(field(stat, USER_TIME)?.checked_add(field(stat, SYSTEM_TIME)?)?))
}

fn field(stat: &str, index: usize) -> Option<u64> {
    // The program's name may contain any character, brackets included.
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(index)?.parse().ok()
}

fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(KIB)
}

#[expect(clippy::cast_precision_loss, reason = "53 bits of ticks last for millions of years")]
fn ticks(ticks: u64) -> f64 {
    ticks as f64 / TICKS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_this_process_are_plausible() {
        let before = OwnProcess::read();
        let used = before.cpu_seconds.expect("known");
        // Each read uses CPU time itself.
        while OwnProcess::read().cpu_seconds.is_some_and(|seconds| seconds <= used) {}
        assert!(OwnProcess::read().cpu_seconds.is_some_and(|seconds| seconds > used));
        assert!(before.resident_bytes.is_some_and(|bytes| bytes > 100 * KIB));
        assert!(before.open_fds.is_some_and(|fds| fds >= 1));
        assert!(before.max_fds.is_none_or(|max| before.open_fds.is_some_and(|fds| fds <= max)));
        let now = Timestamp::now();
        let start = OwnProcess::start_seconds(now).expect("known");
        let age = now.as_duration().as_secs_f64() - start;
        assert!((-1.0..86_400.0).contains(&age), "{age} s");
    }

    #[test]
    fn a_programs_name_with_blanks_and_brackets_shifts_no_field() {
        let stat = "7 (a) b) (c) S 1 7 7 0 -1 4194560 1 0 0 0 250 150 0 0 20 0 1 0 12345 1 1";
        assert_eq!(cpu_seconds(stat), Some(4.0));
        assert_eq!(start_time(stat), Some(12_345));
        assert_eq!(cpu_seconds("7 (a) S 1"), None);
        assert_eq!(resident_bytes("Name:\ta\nVmRSS:\t    2048 kB\n"), Some(2 << 20));
        assert_eq!(resident_bytes("Name:\ta\n"), None);
    }
}
