//! Entry point of `windlass-hook`: parses arguments, runs a command, and reports a failure in one line.

use std::{
    env,
    ffi::{OsStr, OsString},
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use windlass_hook::{HookError, clear, install, limit};
use windlass_host::causes;

/// Command of the program. `proc` is the mount point of procfs.
#[derive(Debug)]
enum Command {
    Limit { record: PathBuf, replicas: u32, proc: PathBuf },
    Clear { note: PathBuf, proc: PathBuf },
    Install { folder: PathBuf },
    Help,
}

const HELP: &str = "\
Limits the GPU memory of a container by cgroup v2: through NVIDIA's driver (615 or newer), or through the kernel's dmem
controller (Linux 6.14 or newer) on GPUs of AMD and Intel.
Container runtimes start it. Windlass writes FILE, the record of the limits. Beside FILE, the hook
writes a note for each container, with its cgroup and its limited GPUs.

Usage: windlass-hook memory-limit --record FILE [--replicas N]
                     sets N times the limits of FILE; standard input is the container's OCI state
       windlass-hook memory-limit --clear NOTE    lifts the limits of one container
       windlass-hook install DIR                  copies this program to DIR/windlass-hook

Exit code: 0 done, 1 failed with the reason on standard error, 64 wrong arguments.
";

/// Mount point of procfs. Tests replace it by `--proc DIR`.
const PROC: &str = "/proc";

/// `EX_USAGE` of `sysexits.h`.
const USAGE: u8 = 64;

fn main() -> ExitCode {
    let Some(command) = Command::parse(env::args_os().skip(1)) else {
        report("wrong arguments; see windlass-hook --help");
        return ExitCode::from(USAGE);
    };
    match command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&causes(&error));
            ExitCode::FAILURE
        }
    }
}

// === impl Command ===

impl Command {
    /// Parses the arguments; `None` if they are wrong.
    fn parse(arguments: impl Iterator<Item = OsString>) -> Option<Self> {
        let arguments: Vec<_> = arguments.collect();
        let arguments: Vec<_> = arguments.iter().map(OsString::as_os_str).collect();
        let (proc, arguments) = match arguments.as_slice() {
            [arguments @ .., option, proc] if *option == "--proc" => (*proc, arguments),
            arguments => (OsStr::new(PROC), arguments),
        };
        let proc = PathBuf::from(proc);
        match arguments {
            [option] if *option == "--help" || *option == "-h" => Some(Self::Help),
            [command, folder] if *command == "install" && !is_option(folder) => {
                Some(Self::Install { folder: folder.into() })
            }
            [command, options @ ..] if *command == "memory-limit" => {
                Self::memory_limit(options, proc)
            }
            _ => None,
        }
    }

    fn memory_limit(arguments: &[&OsStr], proc: PathBuf) -> Option<Self> {
        match arguments {
            [option, record] if *option == "--record" => {
                Some(Self::Limit { record: record.into(), replicas: 1, proc })
            }
            [option, record, replicas_option, replicas]
                if *option == "--record" && *replicas_option == "--replicas" =>
            {
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
                // The reader may close standard output early.
                let _ = io::stdout().write_all(HELP.as_bytes());
                Ok(())
            }
        }
    }
}

fn is_option(argument: &OsStr) -> bool {
    argument.as_encoded_bytes().starts_with(b"-")
}

/// Writes an error as one line to standard error, for the runtime's log. A failed write cannot be reported.
fn report(error: &str) {
    let _ = writeln!(io::stderr(), "windlass-hook: {}", error.replace('\n', " "));
}
