//! Commands to an MPS daemon: set limits, check health, terminate a client, quit.

use std::{path::PathBuf, process::Stdio, time::Duration};

use tokio::io::AsyncWriteExt as _;
use windlass_host::deadline;

use super::{place::DaemonFolder, program::Program, spec::ClientLimits};

#[derive(Debug, thiserror::Error)]
pub(super) enum ControlError {
    #[error("cannot run {path}")]
    Run { path: PathBuf, source: std::io::Error },
    #[error("no answer to {command} within {deadline:?}")]
    Timeout { command: String, deadline: Duration },
    #[error("{command} was refused: {output}")]
    Refused { command: String, output: String },
    #[error("{command} answers {output} although {expected} was set")]
    NotApplied { command: String, output: String, expected: String },
    #[error(
        "its server {server} had a fatal fault: it accepts no client before all of its clients have ended"
    )]
    Fault { server: u32 },
    #[error("no server of the daemon has the process {0} as a client")]
    NoClient(u32),
}

const GET_THREADS: &str = "get_default_active_thread_percentage";

const MIB_PER_GIB: u64 = 1024;

/// State of a server after a fault of its GPU (NVIDIA's MPS guide, "Error Containment").
const FAULT_STATE: &str = "FAULT";

/// Index of the device of a daemon, which has one.
const DEVICE_INDEX: u32 = 0;

// === impl Program ===

impl Program {
    /// Checks that the daemon answers, and that its servers accept clients.
    pub(super) async fn check(
        &self,
        folder: &DaemonFolder,
        deadline: Duration,
    ) -> Result<(), ControlError> {
        self.threads_percent(folder, GET_THREADS, deadline).await?;
        for server in self.servers(folder, deadline).await? {
            let status_command = format!("get_server_status {server}");
            let status = match self.send(folder, &status_command, deadline).await {
                // The server has ended, or the installed MPS is too old for this command.
                Err(ControlError::Refused { .. }) => continue,
                status => status?,
            };
            if status.split_whitespace().any(|word| word == FAULT_STATE) {
                return Err(ControlError::Fault { server });
            }
        }
        Ok(())
    }

    /// Makes the daemon destroy the contexts of a client, so that its process can end without disturbing other clients.
    pub(super) async fn terminate(
        &self,
        folder: &DaemonFolder,
        client: u32,
        deadline: Duration,
    ) -> Result<(), ControlError> {
        for server in self.servers(folder, deadline).await? {
            let clients = self.send(folder, &format!("get_client_list {server}"), deadline).await?;
            if process_ids(&clients).any(|pid| pid == client) {
                let command = format!("terminate_client {server} {client}");
                return self.send(folder, &command, deadline).await.map(drop);
            }
        }
        Err(ControlError::NoClient(client))
    }

    /// Sets the limits of future clients, and reads them back. Connected clients keep their limits.
    pub(super) async fn set_limits(
        &self,
        folder: &DaemonFolder,
        limits: ClientLimits,
        deadline: Duration,
    ) -> Result<(), ControlError> {
        let threads_percent = limits.threads_percent;
        // The defaults are set first, so that a server that starts meanwhile has them.
        let mut commands = vec![format!("set_default_active_thread_percentage {threads_percent}")];
        if let Some(memory) = limits.memory_mib {
            commands.push(format!("set_default_device_pinned_mem_limit {DEVICE_INDEX} {memory}M"));
        }
        self.send_all(folder, &commands, deadline).await?;
        for server in self.servers(folder, deadline).await? {
            let mut commands =
                vec![format!("set_active_thread_percentage {server} {threads_percent}")];
            if let Some(memory) = limits.memory_mib {
                commands
                    .push(format!("set_device_pinned_mem_limit {server} {DEVICE_INDEX} {memory}M"));
            }
            self.send_all(folder, &commands, deadline).await?;
            let threads = format!("get_active_thread_percentage {server}");
            let memory = format!("get_device_pinned_mem_limit {server} {DEVICE_INDEX}");
            self.read_back(folder, limits, [&threads, &memory], deadline).await?;
        }
        let memory = format!("get_default_device_pinned_mem_limit {DEVICE_INDEX}");
        self.read_back(folder, limits, [GET_THREADS, &memory], deadline).await
    }

    /// Reads the limits back by these commands for threads and memory. Fails if they differ from `limits`.
    async fn read_back(
        &self,
        folder: &DaemonFolder,
        limits: ClientLimits,
        [threads, memory]: [&str; 2],
        deadline: Duration,
    ) -> Result<(), ControlError> {
        let expected = limits.threads_percent;
        let (output, percent) = self.threads_percent(folder, threads, deadline).await?;
        if (percent - f64::from(expected)).abs() >= 1.0 {
            let (command, expected) = (threads.to_owned(), format!("{expected}%"));
            return Err(ControlError::NotApplied { command, output, expected });
        }
        let Some(expected) = limits.memory_mib else { return Ok(()) };
        let output = self.send(folder, memory, deadline).await?;
        if is_limit(&output, expected) {
            return Ok(());
        }
        let (command, expected) = (memory.to_owned(), format!("{expected}M"));
        Err(ControlError::NotApplied { command, output, expected })
    }

    /// Process ids of the running servers: one for each user, or one for all.
    async fn servers(
        &self,
        folder: &DaemonFolder,
        deadline: Duration,
    ) -> Result<Vec<u32>, ControlError> {
        let output = self.send(folder, "get_server_list", deadline).await?;
        Ok(process_ids(&output).collect())
    }

    /// Ends the daemon and all its servers.
    pub(super) async fn quit(
        &self,
        folder: &DaemonFolder,
        deadline: Duration,
    ) -> Result<(), ControlError> {
        self.send(folder, "quit", deadline).await.map(drop)
    }

    async fn threads_percent(
        &self,
        folder: &DaemonFolder,
        command: &str,
        deadline: Duration,
    ) -> Result<(String, f64), ControlError> {
        let output = self.send(folder, command, deadline).await?;
        // The program reports a missing daemon in words, possibly with exit status 0.
        match output.split_whitespace().next_back().and_then(|word| word.parse().ok()) {
            Some(percent) => Ok((output, percent)),
            None => Err(ControlError::Refused { command: command.to_owned(), output }),
        }
    }

    async fn send_all(
        &self,
        folder: &DaemonFolder,
        commands: &[String],
        deadline: Duration,
    ) -> Result<(), ControlError> {
        for command in commands {
            self.send(folder, command, deadline).await?;
        }
        Ok(())
    }

    /// Sends one command to the daemon, by a second process of the program. A process without an answer is
    /// killed.
    async fn send(
        &self,
        folder: &DaemonFolder,
        text: &str,
        deadline: Duration,
    ) -> Result<String, ControlError> {
        let mut command = self.command(folder);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.kill_on_drop(true);
        let run_client = async {
            let mut client = command.spawn()?;
            let mut stdin = client.stdin.take().expect("it is piped");
            // If the program has already ended, its output below has the reason.
            let _ = stdin.write_all(format!("{text}\n").as_bytes()).await;
            drop(stdin);
            client.wait_with_output().await
        };
        let output = match deadline::timeout(deadline, run_client).await {
            Err(_) => return Err(ControlError::Timeout { command: text.to_owned(), deadline }),
            Ok(Err(source)) => {
                return Err(ControlError::Run { path: self.program.path.clone(), source });
            }
            Ok(Ok(output)) => output,
        };
        let line =
            |bytes: &[u8]| String::from_utf8_lossy(bytes).replace('\n', " ").trim().to_owned();
        if output.status.success() {
            return Ok(line(&output.stdout));
        }
        let output = line(&[output.stdout, output.stderr].concat());
        Err(ControlError::Refused { command: text.to_owned(), output })
    }
}

/// Process ids of an answer, one per line.
fn process_ids(output: &str) -> impl Iterator<Item = u32> {
    output.split_whitespace().filter_map(|line| line.parse().ok())
}

/// True if the daemon's answer is this limit in MiB. The daemon may round down to whole gibibytes: it answers `3G` for
/// `3777M`.
fn is_limit(output: &str, expected_mib: u64) -> bool {
    let answer = output.split_whitespace().next_back().unwrap_or_default();
    let amount = |unit: char| answer.strip_suffix(unit)?.parse::<u64>().ok();
    match (amount('M'), amount('G')) {
        (Some(answer), _) => answer == expected_mib,
        (None, Some(answer)) => answer == expected_mib / MIB_PER_GIB,
        (None, None) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_answers_its_limit_in_mebibytes_or_in_whole_gibibytes() {
        for (output, expected) in [
            ("3777M", true),
            ("3G", true),
            ("4G", false),
            ("3776M", false),
            ("", false),
            ("Unknown command: get_default_device_pinned_mem_limit", false),
        ] {
            assert_eq!(is_limit(output, 3777), expected, "{output:?}");
        }
    }
}
