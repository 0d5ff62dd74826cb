//! The agent on a real Kubernetes node, with simulated GPUs and with the machine's real devices.
//!
//! Runs only if `WINDLASS_E2E_KUBECONFIG` names a cluster whose kubelet runs on this machine in
//! `/var/lib/kubelet`, with an image `docker.io/local/app:1` that prints its environment and `/dev`
//! and sleeps; needs root and `kubectl`. `WINDLASS_E2E_RESTART_KUBELET` names the program that
//! restarts the kubelet; without it, the tests skip that part and print a notice.

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

/// Variable with the kubeconfig of the cluster.
const KUBECONFIG: &str = "WINDLASS_E2E_KUBECONFIG";

/// Deadline of a change in the Node's status, which the kubelet reports every ten seconds.
const NODE_STATUS_LIMIT: Duration = Duration::from_secs(45);

/// True if the variable names a cluster; else prints a notice.
#[expect(clippy::print_stderr, reason = "a skipped test is reported")]
fn has_cluster() -> bool {
    let is_set = std::env::var_os(KUBECONFIG).is_some();
    if !is_set {
        eprintln!("SKIPPED: set {KUBECONFIG} to run this on a real cluster");
    }
    is_set
}

/// Locks the kubelet's plugin folder, which one agent at a time can serve.
fn plugin_folder_lock() -> std::fs::File {
    let path = std::env::temp_dir().join("windlass-e2e.lock");
    let file = std::fs::File::create(path).expect("a lock file");
    file.lock().expect("locked");
    file
}

/// Polls until the answer is `expected`, and returns the time that it took. Fails after `limit`.
async fn eventually<T: PartialEq + std::fmt::Debug>(
    limit: Duration,
    expected: T,
    mut query: impl AsyncFnMut() -> T,
) -> Duration {
    let start = Instant::now();
    loop {
        let answer = query().await;
        if answer == expected {
            return start.elapsed();
        }
        assert!(start.elapsed() < limit, "{answer:?} instead of {expected:?} after {limit:?}");
        // Twenty calls a second stay below the limit of the kubelet's pod resources API, a hundred calls a second.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
