//! Runs a program of the node to its end, without a shell and with a clean environment. Its process group is killed
//! when the waiting future is dropped.

use std::{
    convert::Infallible,
    io,
    path::Path,
    pin::pin,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncReadExt as _, copy, sink},
    net::unix::pipe::Receiver,
    process::{Child, Command},
};
use windlass_core::device::DeviceId;

use crate::deadline;

/// Error of a program. The caller limits its time.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The path is not absolute.
    #[error("{0} is not an absolute path: write the program's whole path")]
    RelativePath(String),
    /// The program did not start.
    #[error("cannot run {0}")]
    Spawn(String, #[source] io::Error),
    /// The program failed.
    #[error("{program} ended with {status}{output}")]
    Failed {
        /// Path of the program.
        program: String,
        /// Exit status.
        status: ExitStatus,
        /// Last output.
        output: String,
    },
}

/// Maximum number of bytes of output in an error.
const MAX_OUTPUT_BYTES: u64 = 4096;

/// Time to read output after the program's end.
const OUTPUT_GRACE: Duration = Duration::from_millis(50);

/// Environment variable with the device id.
const DEVICE_ID: &str = "WINDLASS_DEVICE_ID";

/// Runs a program for a device. Dropping the future kills the program and its children.
pub async fn run(device: &DeviceId, words: &[String]) -> Result<(), ProgramError> {
    let [program, arguments @ ..] = words else {
        return Err(ProgramError::RelativePath("nothing".to_owned()));
    };
    if !Path::new(program).is_absolute() {
        return Err(ProgramError::RelativePath(program.clone()));
    }
    let mut command = Command::new(program);
    command.args(arguments).env_clear().env(DEVICE_ID, device.as_str());
    run_to_end(program, command).await
}

/// Runs a command named `program`. Dropping the future kills it and its children.
pub async fn run_to_end(program: &str, mut command: Command) -> Result<(), ProgramError> {
    let spawn_error = |error| ProgramError::Spawn(program.to_owned(), error);
    // A program may report errors on either stream. The agent's copies of the writing end are dropped below, so the
    // pipe closes with the program.
    let (pipe, writer) = std::io::pipe().map_err(spawn_error)?;
    let pipe = Receiver::from_owned_fd(pipe.into()).map_err(spawn_error)?;
    command.stdin(Stdio::null()).stdout(writer.try_clone().map_err(spawn_error)?).stderr(writer);
    command.current_dir("/").process_group(0);
    let mut group = ProcessGroup(command.spawn().map_err(spawn_error)?);
    drop(command);
    let mut output = Vec::new();
    let status = {
        let mut reading = pin!(read(pipe, &mut output));
        let status = tokio::select! {
            status = group.0.wait() => status.map_err(spawn_error)?,
            never = &mut reading => match never {},
        };
        if status.success() {
            return Ok(());
        }
        // Children may keep the pipe open for ever, so the rest of the output has a time limit.
        let _ = deadline::timeout(OUTPUT_GRACE, reading).await;
        status
    };
    Err(ProgramError::Failed { program: program.to_owned(), status, output: in_one_line(&output) })
}

/// Process group of a program, killed on drop while the program runs.
struct ProcessGroup(Child);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // The id belongs to this program until the program has been waited for.
        if let Some(id) = self.0.id().and_then(|id| Pid::from_raw(id.cast_signed())) {
            // Fails only if the group has just ended.
            let _ = kill_process_group(id, Signal::KILL);
        }
    }
}

/// Reads output until cancelled. Drops output beyond the limit.
async fn read(mut pipe: Receiver, output: &mut Vec<u8>) -> Infallible {
    // A broken pipe ends the output.
    let _ = (&mut pipe).take(MAX_OUTPUT_BYTES).read_to_end(output).await;
    let _ = copy(&mut pipe, &mut sink()).await;
    std::future::pending().await
}

fn in_one_line(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    let words: Vec<_> = text.split_whitespace().collect();
    if words.is_empty() { String::new() } else { format!(": {}", words.join(" ")) }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use tokio::time::timeout;

    use super::*;

    /// Time limit of a program that ends.
    const LIMIT: Duration = Duration::from_secs(20);

    /// Time limit of a program that hangs.
    const SHORT: Duration = Duration::from_millis(500);

    async fn outcome(words: &[&str]) -> Result<(), String> {
        within(LIMIT, words).await
    }

    async fn within(limit: Duration, words: &[&str]) -> Result<(), String> {
        let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        let device = "board".parse().expect("an id");
        let result = timeout(limit, run(&device, &words)).await;
        result.map_err(|_| "late".to_owned())?.map_err(|error| crate::causes(&error))
    }

    #[tokio::test]
    async fn a_program_gets_its_device_and_no_other_variable() {
        let script = r#"[ "$WINDLASS_DEVICE_ID" = board ] && [ -z "$CARGO_MANIFEST_DIR" ]"#;
        assert_eq!(outcome(&["/bin/sh", "-c", script]).await, Ok(()));
        let result = outcome(&["/bin/sh", "-c", "echo 'no such board' >&2; exit 3"]).await;
        assert_eq!(
            result.expect_err("exit status 3"),
            "/bin/sh ended with exit status: 3: no such board"
        );
        let error = outcome(&["sh"]).await.expect_err("relative");
        assert!(error.starts_with("sh is not an absolute path"), "{error}");
        let error = outcome(&["/no/such"]).await.expect_err("missing");
        assert!(error.starts_with("cannot run /no/such: "), "{error}");
    }

    #[tokio::test]
    async fn a_program_that_hangs_or_floods_is_killed_with_its_children() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let (fifo, mark) = (dir.path().join("fifo"), dir.path().join("mark"));
        let (fifo, mark) = (fifo.display(), mark.display());
        let script =
            format!("mkfifo {fifo}; (read line <>{fifo}; echo late > {mark}) & read line <>{fifo}");
        let result = within(SHORT, &["/bin/sh", "-c", &script]).await;
        assert_eq!(result, Err("late".to_owned()));
        let flooding = ["/bin/sh", "-c", "while :; do echo noise >&2; done"];
        assert!(within(SHORT, &flooding).await.is_err());
        // The child reads until this side of the pipe is closed, or finds no pipe.
        let open_fifo = File::options().read(true).write(true).open(dir.path().join("fifo"));
        let parent_ends = format!("(read line <{fifo}) & exit 4");
        let error = outcome(&["/bin/sh", "-c", &parent_ends]).await.expect_err("exit status 4");
        assert_eq!(error, "/bin/sh ended with exit status: 4", "the child holds the pipe open");
        assert!(!dir.path().join("mark").exists());
        drop(dir);
        drop(open_fifo.expect("a pipe"));
    }
}
