//! Cost of an idle agent.

use std::{collections::BTreeMap, time::Duration};

use anyhow::Result;
use tokio::time::{Instant, sleep, sleep_until};

use crate::{
    proc::{ticks, wakeups},
    report::Row,
    stage::Testbed,
};

const OBSERVATION_TIME: Duration = Duration::from_secs(20);

/// When the start is over.
const SETTLE_TIME: Duration = Duration::from_secs(3);

/// Maximum distance of wake-ups that count as one piece of work. A single wake-up is tokio's timer without work.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

/// Periodic work happens at most this often.
const PERIOD: Duration = Duration::from_secs(10);

/// Watches the agent, with the product's own intervals.
pub(crate) async fn measure() -> Result<Vec<Row>> {
    let served = Testbed::create("dgx-h100")?.serve(&[]).await?;
    let agent = served.agent.id();
    sleep(SETTLE_TIME).await;
    let (ticks_before, mut known) = (ticks(agent)?, wakeups(agent)?);
    let (mut lone, mut woken, mut working, mut pieces) = (0, 0, false, Vec::new());
    let begun = Instant::now();
    for look in 1..=u32::try_from(OBSERVATION_TIME.as_millis() / SAMPLE_INTERVAL.as_millis())? {
        sleep_until(begun + SAMPLE_INTERVAL * look).await;
        let now = wakeups(agent)?;
        let more = increase(&known, &now);
        if more > 1 && !working {
            pieces.push(SAMPLE_INTERVAL * look);
        }
        working = more > 1;
        lone += u64::from(more == 1);
        woken += more;
        known = now;
    }
    let busy = Duration::from_millis(10 * (ticks(agent)? - ticks_before));
    let share = 100.0 * busy.as_secs_f64() / OBSERVATION_TIME.as_secs_f64();
    let times: Vec<_> = pieces.iter().map(|at| format!("{:.1}", at.as_secs_f64())).collect();
    let most = OBSERVATION_TIME.as_secs_f64() / PERIOD.as_secs_f64();
    let count = f64::from(u32::try_from(pieces.len())?);
    Ok(vec![
        Row::single_value(format!("idle CPU over {OBSERVATION_TIME:?}"), format!("{share:.2} %"))
            .with_comparison(format!("{woken} wake-ups, {lone} of them lone")),
        Row::single_value("moments with work", pieces.len())
            .with_comparison(format!("at {} s", times.join(", ")))
            .with_budget(count, most, ""),
    ])
}

/// Wake-ups since the last look; those of a thread that ended between two looks are lost.
fn increase(before: &BTreeMap<String, u64>, now: &BTreeMap<String, u64>) -> u64 {
    let since = |(thread, count): (&String, &u64)| {
        count.saturating_sub(before.get(thread).copied().unwrap_or(0))
    };
    now.iter().map(since).sum()
}
