//! `windlass demo --edge`: a pipeline on five simulated boards, with real stages.
//!
//! The demo predicts and measures three layouts. Then a board fails under load, and its stages move to other boards.

mod event;
mod script;
mod text;

use anyhow::Result;

use super::report::Reporter;
use crate::{exit::Interrupted, stop::StopSignals};
use script::EdgeScript;

pub(super) async fn run(reporter: Reporter, mut signals: StopSignals) -> Result<()> {
    let script = EdgeScript::new(reporter)?;
    tokio::select! {
        outcome = Box::pin(script.run_steps()) => outcome,
        // The stage processes end with this program.
        signal = signals.recv() => Err(Interrupted(signal).into()),
    }
}
