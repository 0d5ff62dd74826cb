//! The end of a process: SIGINT from Ctrl-C, SIGTERM from supervisors, the end of its parent.

use anyhow::{Context as _, Result, ensure};
use rustix::process::{getppid, set_parent_process_death_signal};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listener for termination signals.
#[derive(Debug)]
pub(crate) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

// === impl StopSignals ===

impl StopSignals {
    /// Starts listening; neither signal ends the process by itself from now on.
    pub(crate) fn listen() -> Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?,
        })
    }

    /// Waits for a signal and returns its name.
    pub(crate) async fn recv(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Lets the kernel end this process with its parent, even if the parent is killed.
pub(crate) fn die_with_parent(parent: i32) -> Result<()> {
    set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .with_context(|| format!("cannot end with process {parent}"))?;
    // The parent may have ended before the call.
    let is_parent = getppid().is_some_and(|pid| pid.as_raw_nonzero().get() == parent);
    ensure!(is_parent, "process {parent} is not the parent of this one, or has ended");
    Ok(())
}
