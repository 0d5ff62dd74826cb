//! A long random sequence of hostile steps: raw calls on the agent's own sockets, hundreds each second, while its
//! process is killed, frozen and given false answers. No device ever has two owners, and all are free at the end.
//!
//! ```text
//!  device manager, serial ──Allocate──> ┌───────┐ <──Prepare, Unprepare── workers of claims, side by side,
//!       checkpoint of devices           │ agent │       checkpoint of claims, with an outdated scheduler
//!  faults ─────kill, freeze, delete───> └───────┘
//! ```
//!
//! Pods exist only in the kubelet's checkpoint and in pod resources; no container starts. A caller that gets a device
//! is recorded in [`owners`], which fails if another caller has it. The same seed yields the same steps; their
//! interleaving depends on the machine.

mod agent;
mod devices;
mod faults;
mod kubelet_sockets;
mod node;
mod owners;
mod workers;

use std::{sync::Arc, time::Duration};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use self::{
    devices::DeviceManager,
    faults::Faults,
    node::Node,
    workers::{WORKERS, Worker},
};
use crate::claims::{
    rng::{Length, Rng, seed},
    world::Mounts,
};

/// Default number of steps of a walk; some seconds.
const STEPS: u64 = 400;

/// Longest time without a step.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Random numbers of one actor.
fn rng_for(seed: u64, number: usize) -> Rng {
    Rng::new(seed.wrapping_mul(1_000).wrapping_add(number as u64))
}

#[expect(clippy::print_stdout, reason = "the result of a long walk is printed")]
async fn walk(mounts: Mounts) {
    let seed = seed();
    let (mut faults, node) =
        Faults::start(mounts, Length::from_env_or(STEPS), rng_for(seed, 0)).await;
    let start = Instant::now();
    let mut actors = JoinSet::new();
    actors.spawn(DeviceManager::new(Arc::clone(&node), rng_for(seed, 1)).run());
    for number in 0..WORKERS {
        actors.spawn(Worker::new(Arc::clone(&node), number, rng_for(seed, 2 + number)).run());
    }
    let all_have_ended = async {
        while let Some(ended) = actors.join_next().await {
            ended.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
        }
    };
    tokio::select! {
        ((), ()) = async { tokio::join!(all_have_ended, faults.run()) } => {}
        () = until_stalled(&node) => panic!("no step for {STALL_TIMEOUT:?}"),
    }
    let (steps, elapsed) = (node.steps(), start.elapsed());
    let tally = faults.end().await;
    println!(
        "seed {seed}, {mounts:?} mounts: {steps} steps in {elapsed:.0?}: each device has one owner, then none; {tally:#?}"
    );
    for step in ["claims prepared", "Allocate answered"] {
        assert!(tally.contains_key(step), "no {step}: {tally:?}");
    }
}

async fn until_stalled(node: &Node) {
    loop {
        let before = node.steps();
        sleep(STALL_TIMEOUT).await;
        if node.steps() == before {
            return;
        }
    }
}

#[tokio::test]
async fn hostile_steps_give_no_device_two_owners() {
    walk(Mounts::Whole).await;
}

#[tokio::test]
async fn hostile_steps_give_no_device_two_owners_with_the_shipped_mounts() {
    walk(Mounts::Shipped).await;
}
