//! Work by a program: it reads the payload from stdin, and writes the result to stdout.

use std::{io, path::PathBuf, process::Stdio};

use bytes::Bytes;
use tokio::{io::AsyncWriteExt as _, process::Command};

/// Reason why a program returned no result.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExecError {
    #[error("cannot run {program}")]
    Start { program: String, source: io::Error },
    #[error("{program} ended with {status}: {last}")]
    Failed { program: String, status: String, last: String },
}

/// Runs the program for one payload. A drop of the future kills the program.
pub(super) async fn run(command: Vec<PathBuf>, payload: Bytes) -> Result<Bytes, ExecError> {
    let (program, arguments) = command.split_first().expect("clap requires a program");
    let name = program.display().to_string();
    let start = |source| ExecError::Start { program: name.clone(), source };
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(start)?;
    let stdin = child.stdin.take();
    let writing = async {
        if let Some(mut stdin) = stdin {
            // A program may end without reading everything; its exit code counts.
            drop(stdin.write_all(&payload).await);
        }
    };
    let ((), output) = tokio::join!(writing, child.wait_with_output());
    let output = output.map_err(start)?;
    if output.status.success() {
        return Ok(output.stdout.into());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let last = stderr.lines().rev().find(|line| !line.trim().is_empty());
    let last = last.unwrap_or("nothing on stderr").to_owned();
    Err(ExecError::Failed { program: name, status: output.status.to_string(), last })
}
