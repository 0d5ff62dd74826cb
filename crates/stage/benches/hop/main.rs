//! Cost of a stage per item, compared with a relay of bare gRPC streams: `cargo bench -p windlass-stage --bench hop`.
//!
//! Each stage and each relay has its own thread and runtime, like a process. The cost of one hop is the difference
//! between four stages and one, divided by three, so the source and the listener cancel out. Exits with 1 if a budget
//! is missed.
//!
//! A relay copies messages from one stream to the next, without queue, custody, receipts or times.

mod kit;
mod relay;

use std::{
    io::Write as _,
    process::ExitCode,
    time::{Duration, Instant},
};

use bytes::Bytes;

/// A chain of stages or relays.
trait Chain: Sized {
    /// Starts a chain of `stages` stages on this machine.
    fn start(stages: usize) -> impl Future<Output = Self>;
    /// Sends an item. Waits while the chain has no capacity.
    fn send(&mut self, payload: Bytes) -> impl Future<Output = ()>;
    /// Waits for an item at the end of the chain.
    fn receive(&mut self) -> impl Future<Output = ()>;
}

/// Stages of the longer chain.
const STAGES: usize = 4;

/// Budget per item and hop: maximum extra time of a stage over a relay.
const OVERHEAD: Duration = Duration::from_micros(60);

/// Budget of the throughput over one hop with large payloads: minimum.
const MB_PER_SECOND: f64 = 200.0;

const SMALL: usize = 1024;
const LARGE: usize = 1024 * 1024;

/// Numbers of items per measurement, and of warm-up items before each.
const LATENCY_ITEMS: usize = 3_000;
const RATE_ITEMS: usize = 30_000;
const LARGE_ITEMS: usize = 1_000;
const WARM: usize = 300;

/// Each measurement is the best of this number of rounds, since the machine can be busy.
const ROUNDS: usize = 3;

/// Items in flight in the measurements of rate and throughput. More would only wait in queues.
const IN_FLIGHT: usize = 64;

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let is_within_budget = runtime.expect("a runtime").block_on(measure());
    if is_within_budget { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn measure() -> bool {
    print("per item and hop               kit us   relay us   more us   budget us");
    let latencies = (hop::<kit::Kit>(latency).await, hop::<relay::Relays>(latency).await);
    let latency_passed = row("1 KiB, one item in flight", latencies);
    let rates = (hop::<kit::Kit>(rate).await, hop::<relay::Relays>(rate).await);
    let rate_passed = row("1 KiB, at saturation", rates);
    print("");
    print("over one hop                 kit MB/s   relay MB/s   budget MB/s");
    let kit = throughput::<kit::Kit>().await;
    let relay = throughput::<relay::Relays>().await;
    let verdict = if kit >= MB_PER_SECOND { "" } else { "  MISSED" };
    print(&format!(
        "1 MiB                        {kit:8.0}   {relay:10.0}   {MB_PER_SECOND:11.0}{verdict}"
    ));
    latency_passed && rate_passed && kit >= MB_PER_SECOND
}

fn row(name: &str, (kit, relay): (Duration, Duration)) -> bool {
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    let overhead = kit.saturating_sub(relay);
    let verdict = if overhead <= OVERHEAD { "" } else { "  MISSED" };
    print(&format!(
        "{name:<28} {:8.1} {:10.1} {:9.1} {:11.0}{verdict}",
        us(kit),
        us(relay),
        us(overhead),
        us(OVERHEAD)
    ));
    overhead <= OVERHEAD
}

/// Time per additional hop: difference between the longer chain and a chain of one.
async fn hop<C: Chain>(time: impl AsyncFn(C) -> Duration) -> Duration {
    let mut best = [Duration::MAX; 2];
    for _ in 0..ROUNDS {
        for (best, stages) in best.iter_mut().zip([1, STAGES]) {
            *best = (*best).min(time(C::start(stages).await).await);
        }
    }
    let hops = u32::try_from(STAGES - 1).expect("few");
    best[1].saturating_sub(best[0]) / hops
}

/// Time of an item from end to end, with one item in flight.
async fn latency<C: Chain>(mut chain: C) -> Duration {
    let payload = Bytes::from(vec![7; SMALL]);
    let mut started = Instant::now();
    for item in 0..WARM + LATENCY_ITEMS {
        if item == WARM {
            started = Instant::now();
        }
        chain.send(payload.clone()).await;
        chain.receive().await;
    }
    started.elapsed() / u32::try_from(LATENCY_ITEMS).expect("few")
}

/// Mean time between two items at the end, with [`IN_FLIGHT`] items in flight.
async fn rate<C: Chain>(chain: C) -> Duration {
    time_per_item(chain, SMALL, RATE_ITEMS).await
}

async fn time_per_item<C: Chain>(mut chain: C, size: usize, items: usize) -> Duration {
    let payload = Bytes::from(vec![7; size]);
    let (mut sent, mut received, mut started) = (0, 0, Instant::now());
    while received < WARM + items {
        while sent - received < IN_FLIGHT && sent < WARM + items {
            chain.send(payload.clone()).await;
            sent += 1;
        }
        chain.receive().await;
        received += 1;
        if received == WARM {
            started = Instant::now();
        }
    }
    started.elapsed() / u32::try_from(items).expect("few")
}

async fn throughput<C: Chain>() -> f64 {
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        best = best.min(time_per_item(C::start(1).await, LARGE, LARGE_ITEMS).await);
    }
    // 1 MiB is 1.048576 MB.
    1.048_576 / best.as_secs_f64()
}

fn print(line: &str) {
    // A closed standard output is not an error.
    drop(writeln!(std::io::stdout(), "{line}"));
}
