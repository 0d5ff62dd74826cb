//! Entry point of `windlass-hook`: arguments, one sentence on failure, exit code.

use std::{
    env,
    ffi::{OsStr, OsString},
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use windlass_hook::{HookError, clear, install, limit};
use windlass_host::causes;

/// Work of one start, with the mount point of procfs.
#[derive(Debug)]
enum Task {
    Limit { record: PathBuf, proc: PathBuf },
    Clear { note: PathBuf, proc: PathBuf },
    Install { folder: PathBuf },
    Help,
}

const HELP: &str = "\
Limits the GPU memory of a container through NVIDIA's driver (615 or newer) and cgroup v2.
Container runtimes start it; Windlass writes its records.

Usage: windlass-hook memory-limit --record FILE   with the container's OCI state on standard input
       windlass-hook memory-limit --clear NOTE    lifts the limits of a note
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
            [command, option, path] if *command == "memory-limit" => {
                let path = Path::new(path).to_owned();
                match option.to_str()? {
                    "--record" => Some(Self::Limit { record: path, proc }),
                    "--clear" => Some(Self::Clear { note: path, proc }),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    fn run(self) -> Result<(), HookError> {
        match self {
            Self::Limit { record, proc } => limit(&record, io::stdin().lock(), &proc).map(drop),
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
