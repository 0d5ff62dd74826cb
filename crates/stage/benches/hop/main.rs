//! Cost of a stage per item, beside a relay of bare gRPC streams: `cargo bench -p windlass-stage --bench hop`.
//!
//! Each stage and each relay has a thread with a runtime of its own, as processes have. The cost of one hop is the
//! difference between four stages and one, divided by three: the ends of the pipeline cancel out. Ends with 1 where a
//! budget is missed.
//!
//! A relay reads a stream and writes what it reads to the next one: no queue, no custody, no receipts, no times.

mod kit;
mod relay;

use std::{
    io::Write as _,
    process::ExitCode,
    time::{Duration, Instant},
};

use bytes::Bytes;

/// A chain of stages or relays, with an item's way in and out.
trait Chain: Sized {
    /// Starts a chain of so many on this machine.
    fn start(stages: usize) -> impl Future<Output = Self>;
    /// Sends an item, when there is room.
    fn send(&mut self, payload: Bytes) -> impl Future<Output = ()>;
    /// Waits for an item at the end.
    fn receive(&mut self) -> impl Future<Output = ()>;
}

/// Stages of the longer chain.
const STAGES: usize = 4;

/// Most time that a stage may take more than a relay, per item.
const OVERHEAD: Duration = Duration::from_micros(60);

/// Least throughput of large payloads over one hop.
const MB_PER_SECOND: f64 = 200.0;

const SMALL: usize = 1024;
const LARGE: usize = 1024 * 1024;

/// Items of one measurement, and items that are left out before it.
const ONE_BY_ONE: usize = 3_000;
const AT_ONCE: usize = 30_000;
const LARGE_ITEMS: usize = 1_000;
const WARM: usize = 300;

/// Each measurement is the best of so many: the machine has other work too.
const ROUNDS: usize = 3;

/// Items between the source and the end. More would only wait.
const IN_FLIGHT: usize = 64;

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let held = runtime.expect("a runtime").block_on(measure());
    if held { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn measure() -> bool {
    print("per item and hop               kit us   relay us   more us   budget us");
    let one = (hop::<kit::Kit>(latency).await, hop::<relay::Relays>(latency).await);
    let held_one = row("1 KiB, one item in flight", one);
    let many = (hop::<kit::Kit>(rate).await, hop::<relay::Relays>(rate).await);
    let held_many = row("1 KiB, at saturation", many);
    print("");
    print("over one hop                 kit MB/s   relay MB/s   budget MB/s");
    let kit = throughput::<kit::Kit>().await;
    let relay = throughput::<relay::Relays>().await;
    let missed = if kit >= MB_PER_SECOND { "" } else { "  MISSED" };
    print(&format!(
        "1 MiB                        {kit:8.0}   {relay:10.0}   {MB_PER_SECOND:11.0}{missed}"
    ));
    held_one && held_many && kit >= MB_PER_SECOND
}

fn row(name: &str, (kit, relay): (Duration, Duration)) -> bool {
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    let more = kit.saturating_sub(relay);
    let missed = if more <= OVERHEAD { "" } else { "  MISSED" };
    print(&format!(
        "{name:<28} {:8.1} {:10.1} {:9.1} {:11.0}{missed}",
        us(kit),
        us(relay),
        us(more),
        us(OVERHEAD)
    ));
    more <= OVERHEAD
}

/// Time of one more hop: of the longer chain beyond a chain of one.
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

/// Time of an item from end to end, with no other under way.
async fn latency<C: Chain>(mut chain: C) -> Duration {
    let payload = Bytes::from(vec![7; SMALL]);
    let mut begun = Instant::now();
    for item in 0..WARM + ONE_BY_ONE {
        if item == WARM {
            begun = Instant::now();
        }
        chain.send(payload.clone()).await;
        chain.receive().await;
    }
    begun.elapsed() / u32::try_from(ONE_BY_ONE).expect("few")
}

/// Time between two items at the end, with as many under way as there is room for.
async fn rate<C: Chain>(chain: C) -> Duration {
    between(chain, SMALL, AT_ONCE).await
}

async fn between<C: Chain>(mut chain: C, size: usize, items: usize) -> Duration {
    let payload = Bytes::from(vec![7; size]);
    let (mut sent, mut received, mut begun) = (0, 0, Instant::now());
    while received < WARM + items {
        while sent - received < IN_FLIGHT && sent < WARM + items {
            chain.send(payload.clone()).await;
            sent += 1;
        }
        chain.receive().await;
        received += 1;
        if received == WARM {
            begun = Instant::now();
        }
    }
    begun.elapsed() / u32::try_from(items).expect("few")
}

async fn throughput<C: Chain>() -> f64 {
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        best = best.min(between(C::start(1).await, LARGE, LARGE_ITEMS).await);
    }
    // The units of the budget are millions.
    1.048_576 / best.as_secs_f64()
}

fn print(line: &str) {
    // A reader that is gone needs no line.
    drop(writeln!(std::io::stdout(), "{line}"));
}
