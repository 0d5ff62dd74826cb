//! The program as a child process of a test, with its own folders.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read},
    process::{Child, Command, Output, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

/// Deadline for the program's next line, and for its exit.
const LIMIT: Duration = Duration::from_secs(20);

/// File system in memory, for folders if the machine has it: a simulated machine has a thousand small files.
const TMPFS_DIR: &str = "/dev/shm";

/// Command of the program with arguments, and without the developer's `WINDLASS_*` variables.
pub(crate) fn windlass(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    command.args(arguments).stdin(Stdio::null());
    if tempfile::tempdir_in(TMPFS_DIR).is_ok() {
        command.env("TMPDIR", TMPFS_DIR);
    }
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("WINDLASS_") {
            command.env_remove(name);
        }
    }
    command
}

/// Runs the program until it exits.
pub(crate) fn run(arguments: &[&str]) -> Output {
    windlass(arguments).output().expect("windlass runs")
}

/// Output of the program as text.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// JSON objects of a program's output, one for each line.
pub(crate) fn json_lines(output: &[u8]) -> Vec<Value> {
    text(output).lines().map(|line| serde_json::from_str(line).expect("one object")).collect()
}

/// Temporary folder of the test.
pub(crate) fn folder() -> TempDir {
    let mut builder = tempfile::Builder::new();
    builder.prefix("wl");
    builder.tempdir_in(TMPFS_DIR).or_else(|_| builder.tempdir()).expect("a temporary folder")
}

/// Creates a simulated machine, and returns the flags that select it.
pub(crate) fn machine(folder: &TempDir, profile: &str) -> Vec<String> {
    let dir = folder.path().join("machine");
    let output = run(&["machine", "create", &dir.display().to_string(), "--machine", profile]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let path = |name: &str| dir.join(name).display().to_string();
    vec!["--host-root".into(), path("host"), "--nvml-library".into(), path("libnvidia-ml.so.1")]
}

/// Lines of a program's output. Fails the test if the program writes no line within `LIMIT`.
pub(crate) struct OutputLines(mpsc::Receiver<String>);

/// A running `windlass node`; killed when dropped.
pub(crate) struct Node {
    child: Child,
    log: OutputLines,
    pub(crate) log_lines: Vec<String>,
}

// === impl OutputLines ===

impl OutputLines {
    pub(crate) fn from_pipe(pipe: Option<impl Read + Send + 'static>) -> Self {
        let (sender, receiver) = mpsc::channel();
        let pipe = BufReader::new(pipe.expect("piped"));
        // The thread ends with the output.
        thread::spawn(move || {
            pipe.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Self(receiver)
    }
}

impl Iterator for OutputLines {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        match self.0.recv_timeout(LIMIT) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("no line was written within {LIMIT:?}"),
        }
    }
}

// === impl Node ===

impl Node {
    /// Starts an agent whose folders, and the kubelet's, are in `folder`.
    pub(crate) fn start(folder: &TempDir, host: &[String]) -> Self {
        fs::create_dir_all(folder.path().join("kubelet")).expect("created");
        Self::start_before_the_kubelet(folder, host)
    }

    /// Starts an agent on a node without a kubelet's folder.
    pub(crate) fn start_before_the_kubelet(folder: &TempDir, host: &[String]) -> Self {
        Self::start_with(folder, host, &[])
    }

    /// Starts an agent with environment variables, on a node without a kubelet's folder.
    pub(crate) fn start_with(
        folder: &TempDir,
        host: &[String],
        variables: &[(&str, &str)],
    ) -> Self {
        let path = |name: &str| folder.path().join(name).display().to_string();
        let mut command = windlass(&["node", "--kubelet-dir", &path("kubelet")]);
        command.args(["--cdi-dir", &path("cdi"), "--state-dir", &path("state")]);
        command.args(["--log-format", "json"]).args(host).envs(variables.iter().copied());
        let mut child = command.stderr(Stdio::piped()).spawn().expect("windlass runs");
        let log = OutputLines::from_pipe(child.stderr.take());
        Self { child, log, log_lines: Vec::new() }
    }

    /// Reads the log until a message appears, and returns its event.
    pub(crate) fn wait_for_message(&mut self, message: &str) -> Value {
        for line in self.log.by_ref() {
            self.log_lines.push(line.clone());
            let event: Value = serde_json::from_str(&line).expect("every line is JSON");
            if event["message"] == message {
                return event;
            }
        }
        panic!("the log ended without {message:?}: {:#?}", self.log_lines)
    }

    /// Sends a signal to the agent, such as TERM.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args(["-s", name, &pid]).status().expect("kill runs");
        assert!(status.success());
    }

    /// Waits until the agent exits.
    pub(crate) fn wait(&mut self) -> std::process::ExitStatus {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status;
            }
            assert!(Instant::now() < deadline, "the agent does not exit");
            std::thread::yield_now();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
