//! The agent on a real Kubernetes node, with simulated GPUs, and with the devices that the machine really has.
//!
//! Runs when `WINDLASS_E2E_KUBECONFIG` names a cluster whose kubelet runs on this machine in
//! `/var/lib/kubelet`, with an image `docker.io/local/app:1` that prints its environment and `/dev`
//! and sleeps; needs root and `kubectl`. `WINDLASS_E2E_RESTART_KUBELET` names the program that
//! restarts the kubelet; without it that part is left out, and said so.

mod chart;
mod claims;
mod devices;
#[cfg(feature = "cluster")]
mod extender;
#[cfg(feature = "cluster")]
mod images;
mod kubelet;
mod memory;
mod node;
#[cfg(feature = "pipeline")]
mod pipeline;
mod pods;
#[cfg(feature = "cluster")]
mod replicas;
mod restarts;
mod shares;
mod sharing;

use std::time::{Duration, Instant};

/// A cluster to run on.
const KUBECONFIG: &str = "WINDLASS_E2E_KUBECONFIG";

/// The kubelet tells the API server of its node every ten seconds.
const NODE_STATUS: Duration = Duration::from_secs(45);

/// True with a cluster; prints a notice without one.
#[expect(clippy::print_stderr, reason = "a test that is left out says so")]
fn has_cluster() -> bool {
    let named = std::env::var_os(KUBECONFIG).is_some();
    if !named {
        eprintln!("SKIPPED: set {KUBECONFIG} to run this on a real cluster");
    }
    named
}

/// The kubelet has one folder for plugins, and one agent at a time serves it.
fn alone() -> std::fs::File {
    let path = std::env::temp_dir().join("windlass-e2e.lock");
    let file = std::fs::File::create(path).expect("a lock file");
    file.lock().expect("locked");
    file
}

/// Asks until the answer is right; the API server is not watched here.
async fn eventually<T: PartialEq + std::fmt::Debug>(
    limit: Duration,
    expected: T,
    mut ask: impl AsyncFnMut() -> T,
) -> Duration {
    let begun = Instant::now();
    loop {
        let answer = ask().await;
        if answer == expected {
            return begun.elapsed();
        }
        assert!(begun.elapsed() < limit, "{answer:?} instead of {expected:?} after {limit:?}");
        // Twenty times a second stays below the kubelet's limit of a hundred questions.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
