//! Commands to an MPS daemon: set limits, ping, quit.

use std::{path::PathBuf, process::Stdio, time::Duration};

use tokio::io::AsyncWriteExt as _;
use windlass_host::deadline;

use super::{place::Place, program::Program, spec::Share};

#[derive(Debug, thiserror::Error)]
pub(super) enum ControlError {
    #[error("cannot run {path}")]
    Run { path: PathBuf, source: std::io::Error },
    #[error("no answer to {command} within {deadline:?}")]
    Late { command: String, deadline: Duration },
    #[error("{command} was refused: {said}")]
    Refused { command: String, said: String },
    #[error("the daemon limits clients to {said}% of the threads though {wanted}% were set")]
    NotTaken { said: String, wanted: u32 },
}

const GET_THREADS: &str = "get_default_active_thread_percentage";

/// The daemon's own number of its only device.
const DEVICE: u32 = 0;

// === impl Program ===

impl Program {
    /// Checks that the daemon answers.
    pub(super) async fn ping(&self, place: &Place, deadline: Duration) -> Result<(), ControlError> {
        self.threads_percent(place, deadline).await.map(drop)
    }

    /// Sets the limits of each client, and reads them back. Connected clients keep their limits.
    pub(super) async fn limit(
        &self,
        place: &Place,
        share: Share,
        deadline: Duration,
    ) -> Result<(), ControlError> {
        let wanted = share.threads_percent;
        // Defaults come first: a server that starts meanwhile gets them.
        let mut commands = vec![format!("set_default_active_thread_percentage {wanted}")];
        if let Some(memory) = share.memory_mib {
            commands.push(format!("set_default_device_pinned_mem_limit {DEVICE} {memory}M"));
        }
        self.ask_all(place, &commands, deadline).await?;
        for server in self.servers(place, deadline).await? {
            let mut commands = vec![format!("set_active_thread_percentage {server} {wanted}")];
            if let Some(memory) = share.memory_mib {
                commands.push(format!("set_device_pinned_mem_limit {server} {DEVICE} {memory}M"));
            }
            self.ask_all(place, &commands, deadline).await?;
        }
        let (said, percent) = self.threads_percent(place, deadline).await?;
        if (percent - f64::from(wanted)).abs() < 1.0 {
            Ok(())
        } else {
            Err(ControlError::NotTaken { said, wanted })
        }
    }

    /// Process ids of the running servers: one for each user, or one for all.
    async fn servers(&self, place: &Place, deadline: Duration) -> Result<Vec<u32>, ControlError> {
        let said = self.ask(place, "get_server_list", deadline).await?;
        Ok(said.split_whitespace().filter_map(|word| word.parse().ok()).collect())
    }

    /// Ends the daemon and all its servers.
    pub(super) async fn quit(&self, place: &Place, deadline: Duration) -> Result<(), ControlError> {
        self.ask(place, "quit", deadline).await.map(drop)
    }

    async fn threads_percent(
        &self,
        place: &Place,
        deadline: Duration,
    ) -> Result<(String, f64), ControlError> {
        let said = self.ask(place, GET_THREADS, deadline).await?;
        // The program reports a missing daemon in words, possibly with exit status 0.
        match said.split_whitespace().next_back().and_then(|word| word.parse().ok()) {
            Some(percent) => Ok((said, percent)),
            None => Err(ControlError::Refused { command: GET_THREADS.to_owned(), said }),
        }
    }

    async fn ask_all(
        &self,
        place: &Place,
        commands: &[String],
        deadline: Duration,
    ) -> Result<(), ControlError> {
        for command in commands {
            self.ask(place, command, deadline).await?;
        }
        Ok(())
    }

    /// Sends one command to the daemon, by a second process of the program. A process without an answer is
    /// killed.
    async fn ask(
        &self,
        place: &Place,
        text: &str,
        deadline: Duration,
    ) -> Result<String, ControlError> {
        let mut command = self.command(place);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.kill_on_drop(true);
        let asked = async {
            let mut client = command.spawn()?;
            let mut stdin = client.stdin.take().expect("it is piped");
            // A program that ended early gives its reason below.
            let _ = stdin.write_all(format!("{text}\n").as_bytes()).await;
            drop(stdin);
            client.wait_with_output().await
        };
        let output = match deadline::timeout(deadline, asked).await {
            Err(_) => return Err(ControlError::Late { command: text.to_owned(), deadline }),
            Ok(Err(source)) => {
                return Err(ControlError::Run { path: self.program.path.clone(), source });
            }
            Ok(Ok(output)) => output,
        };
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace('\n', " ");
        if output.status.success() {
            return Ok(said(&output.stdout).trim().to_owned());
        }
        let said = said(&[output.stdout, output.stderr].concat()).trim().to_owned();
        Err(ControlError::Refused { command: text.to_owned(), said })
    }
}
