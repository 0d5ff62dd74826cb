//! Cost of the agent, with budgets: `cargo bench -p windlass --bench agent`.
//!
//! Every figure that depends on the machine has a baseline, measured alternately in the same run. The agent is the real
//! binary in its own process; the machine and the kubelet are simulated. A missed budget is printed, and fails the run
//! only with `--strict`. On a host with GPUs, `host-spawn` measures the start with the host's own driver.
//!
//! `WINDLASS_BENCH_PEER` names another device plugin to measure beside ours. It serves in `/var/lib/kubelet`, so the
//! run needs a private mount there, which does not disturb a kubelet of the machine:
//!
//! ```sh
//! WINDLASS_BENCH_PEER=/usr/bin/nvidia-device-plugin unshare --mount sh -c \
//!   'mount -t tmpfs bench /var/lib/kubelet && cargo bench -p windlass --bench agent'
//! ```

mod calls;
mod empty;
mod fault;
mod idle;
mod memory;
mod proc;
mod report;
mod samples;
mod spawn;
mod stage;
mod system_calls;
mod watchdog;

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::{Parser, ValueEnum};
use report::{Report, Row};
use spawn::GpuHost;

#[derive(Debug, Parser)]
struct Arguments {
    /// Benchmark to run [default: spawn, calls, memory, fault]
    parts: Vec<Part>,
    /// End with 1 if a budget is missed.
    #[arg(long)]
    strict: bool,
    /// Another device plugin to measure beside ours.
    #[arg(long, env = "WINDLASS_BENCH_PEER", value_name = "COMMAND")]
    peer: Option<PathBuf>,
    /// Flag that cargo passes to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
    /// Run the baseline's server on this socket.
    #[arg(long, hide = true, value_name = "SOCKET")]
    serve_empty: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Part {
    Spawn,
    /// `spawn` with the GPUs of this host.
    HostSpawn,
    Calls,
    Memory,
    Fault,
    Idle,
    Watchdog,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    // One thread, as in the agent.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the async runtime")?;
    runtime.block_on(async {
        if let Some(socket) = arguments.serve_empty {
            return empty::serve(socket).await;
        }
        tokio::select! {
            outcome = measure(arguments) => outcome,
            // The dropped future stops the processes and removes the files of the run.
            _ = tokio::signal::ctrl_c() => bail!("interrupted"),
        }
    })
}

async fn measure(arguments: Arguments) -> Result<()> {
    let mut report = Report::begin()?;
    let parts = if arguments.parts.is_empty() { &Part::DEFAULT } else { &arguments.parts[..] };
    for part in parts {
        report.show(&part.measure(&arguments).await.with_context(|| format!("{part:?}"))?)?;
    }
    let missed_count = report.end()?;
    if missed_count > 0 && arguments.strict {
        bail!("budgets were missed");
    }
    Ok(())
}

// === impl Part ===

impl Part {
    const DEFAULT: [Self; 4] = [Self::Spawn, Self::Calls, Self::Memory, Self::Fault];

    async fn measure(self, arguments: &Arguments) -> Result<Vec<Row>> {
        let peer = arguments.peer.as_deref();
        match self {
            Self::Spawn => spawn::measure(peer, GpuHost::Simulated).await,
            Self::HostSpawn => spawn::measure(peer, GpuHost::This).await,
            Self::Calls => calls::measure().await,
            Self::Memory => memory::measure().await,
            Self::Fault => fault::measure().await,
            Self::Idle => idle::measure().await,
            Self::Watchdog => watchdog::measure().await,
        }
    }
}
