//! Entry point of `windlass-hook`: arguments, one sentence on failure, exit code.

use std::{
    env,
    ffi::{OsStr, OsString},
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use windlass_hook::{HookError, clear, install, limit};
use windlass_host::causes;

/// Command of one run. `proc` is the mount point of procfs.
#[derive(Debug)]
enum Task {
    Limit { record: PathBuf, replicas: u32, proc: PathBuf },
    Clear { note: PathBuf, proc: PathBuf },
    Install { folder: PathBuf },
    Help,
}

const HELP: &str = "\
Limits the GPU memory of a container by cgroup v2: through NVIDIA's driver (615 or newer), or through the kernel's dmem
controller (Linux 6.14 or newer) on GPUs of AMD and Intel.
Container runtimes start it. Windlass writes FILE, the record of the limits. Beside it, the hook
leaves a note of each container with the cgroup and the limited GPUs.

Usage: windlass-hook memory-limit --record FILE [--replicas N]
                     with the container's OCI state on standard input; N times the limits of FILE
       windlass-hook memory-limit --clear NOTE    lifts the limits of one container
       windlass-hook install DIR                  copies this program to DIR/windlass-hook

Exit code: 0 done, 1 failed with the reason on standard error, 64 wrong arguments.
";

/// Mount point of procfs. `--proc DIR` moves it for tests.
const PROC: &str = "/proc";

/// `EX_USAGE` of `sysexits.h`.
const USAGE: u8 = 64;

fn main() -> ExitCode {
    let Some(task) = Task::of(env::args_os().skip(1)) else {
        say("wrong arguments; see windlass-hook --help");
        return ExitCode::from(USAGE);
    };
    match task.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&causes(&error));
            ExitCode::FAILURE
        }
    }
}

// === impl Task ===

impl Task {
    fn of(arguments: impl Iterator<Item = OsString>) -> Option<Self> {
        let arguments: Vec<_> = arguments.collect();
        let arguments: Vec<_> = arguments.iter().map(OsString::as_os_str).collect();
        let (proc, arguments) = match arguments.as_slice() {
            [rest @ .., option, proc] if *option == "--proc" => (*proc, rest),
            all => (OsStr::new(PROC), all),
        };
        let proc = PathBuf::from(proc);
        match arguments {
            [option] if *option == "--help" || *option == "-h" => Some(Self::Help),
            [command, folder] if *command == "install" && !is_option(folder) => {
                Some(Self::Install { folder: folder.into() })
            }
            [command, rest @ ..] if *command == "memory-limit" => Self::of_limit(rest, proc),
            _ => None,
        }
    }

    fn of_limit(arguments: &[&OsStr], proc: PathBuf) -> Option<Self> {
        match arguments {
            [option, record] if *option == "--record" => {
                Some(Self::Limit { record: record.into(), replicas: 1, proc })
            }
            [option, record, with, replicas] if *option == "--record" && *with == "--replicas" => {
                let replicas = replicas.to_str()?.parse().ok()?;
                Some(Self::Limit { record: record.into(), replicas, proc })
            }
            [option, note] if *option == "--clear" => Some(Self::Clear { note: note.into(), proc }),
            _ => None,
        }
    }

    fn run(self) -> Result<(), HookError> {
        match self {
            Self::Limit { record, replicas, proc } => {
                limit(&record, replicas, io::stdin().lock(), &proc).map(drop)
            }
            Self::Clear { note, proc } => clear(&note, &proc),
            Self::Install { folder } => install(&folder),
            Self::Help => {
                // A closed output is the reader's choice.
                let _ = io::stdout().write_all(HELP.as_bytes());
                Ok(())
            }
        }
    }
}

fn is_option(argument: &OsStr) -> bool {
    argument.as_encoded_bytes().starts_with(b"-")
}

/// Writes one line for the runtime's log. A failed write cannot be reported.
fn say(sentence: &str) {
    let _ = writeln!(io::stderr(), "windlass-hook: {}", sentence.replace('\n', " "));
}
