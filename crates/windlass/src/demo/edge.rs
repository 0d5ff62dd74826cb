//! `windlass demo --edge`: a pipeline on five simulated boards, with real stages.
//!
//! Three layouts are predicted and measured; then a board fails while items flow, and its stages are placed anew.

mod event;
mod script;
mod text;

use anyhow::Result;

use super::report::Reporter;
use crate::{exit::Interrupted, stop::Stop};
use script::EdgeScript;

pub(super) async fn run(reporter: Reporter, mut stop: Stop) -> Result<()> {
    let story = EdgeScript::new(reporter)?;
    tokio::select! {
        outcome = Box::pin(story.play()) => outcome,
        // The stages end with this program.
        signal = stop.requested() => Err(Interrupted(signal).into()),
    }
}
