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

/// Time until the start is over.
const SETTLE_TIME: Duration = Duration::from_secs(3);

/// Interval between samples. Wake-ups in consecutive samples are one piece of work; a single wake-up in a sample is a
/// timer of tokio without work.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

/// Minimum interval of the agent's periodic work.
const PERIOD: Duration = Duration::from_secs(10);

/// Observes an agent with the default intervals.
pub(crate) async fn measure() -> Result<Vec<Row>> {
    let serving_agent = Testbed::create("dgx-h100")?.serve(&[]).await?;
    let agent = serving_agent.agent.id();
    sleep(SETTLE_TIME).await;
    let (ticks_before, mut previous) = (ticks(agent)?, wakeups(agent)?);
    let (mut single_count, mut wakeup_count, mut was_working, mut work_times) =
        (0, 0, false, Vec::new());
    let started = Instant::now();
    for sample in 1..=u32::try_from(OBSERVATION_TIME.as_millis() / SAMPLE_INTERVAL.as_millis())? {
        sleep_until(started + SAMPLE_INTERVAL * sample).await;
        let current = wakeups(agent)?;
        let new_wakeups = increase(&previous, &current);
        if new_wakeups > 1 && !was_working {
            work_times.push(SAMPLE_INTERVAL * sample);
        }
        was_working = new_wakeups > 1;
        single_count += u64::from(new_wakeups == 1);
        wakeup_count += new_wakeups;
        previous = current;
    }
    let processor_time = Duration::from_millis(10 * (ticks(agent)? - ticks_before));
    let share = 100.0 * processor_time.as_secs_f64() / OBSERVATION_TIME.as_secs_f64();
    let times: Vec<_> = work_times.iter().map(|at| format!("{:.1}", at.as_secs_f64())).collect();
    let max_count = OBSERVATION_TIME.as_secs_f64() / PERIOD.as_secs_f64();
    let count = f64::from(u32::try_from(work_times.len())?);
    Ok(vec![
        Row::single_value(format!("idle CPU over {OBSERVATION_TIME:?}"), format!("{share:.2} %"))
            .with_comparison(format!("{wakeup_count} wake-ups, {single_count} of them single")),
        Row::single_value("pieces of work", work_times.len())
            .with_comparison(format!("at {} s", times.join(", ")))
            .with_budget(count, max_count, ""),
    ])
}

/// Wake-ups since the previous sample. Those of a thread that has ended since then are not counted.
fn increase(previous: &BTreeMap<String, u64>, current: &BTreeMap<String, u64>) -> u64 {
    let since_previous = |(thread, count): (&String, &u64)| {
        count.saturating_sub(previous.get(thread).copied().unwrap_or(0))
    };
    current.iter().map(since_previous).sum()
}
