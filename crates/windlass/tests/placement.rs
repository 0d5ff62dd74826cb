//! Placement on simulated machines: documented answers, exactness, and sequences of jobs.

mod answers;
#[path = "../benches/placement/best_effort.rs"]
mod best_effort;
#[path = "../benches/placement/by_hand.rs"]
mod by_hand;
mod enumeration;
mod exact;
mod labels;
#[path = "../benches/placement/machines.rs"]
mod machines;
#[path = "../benches/placement/pairs.rs"]
mod pairs;
mod questions;
#[path = "../benches/placement/random.rs"]
mod random;
mod rivals;
#[path = "../benches/placement/sequences.rs"]
mod sequences;
#[path = "../benches/placement/strategies.rs"]
mod strategies;
#[path = "../benches/placement/workload.rs"]
mod workload;

use tokio::sync::OnceCell;

use machines::Machine;

/// Every machine, created once.
async fn every_machine() -> &'static [Machine] {
    static MACHINES: OnceCell<Vec<Machine>> = OnceCell::const_new();
    MACHINES.get_or_init(|| async { machines::all().await.expect("machines") }).await
}
