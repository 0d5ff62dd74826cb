//! Memory of the agent: at rest, and after many calls.

use std::time::Duration;

use anyhow::Result;

use crate::{
    calls::{Client, allocation},
    proc::{Resident, mib},
    report::Row,
    stage::Testbed,
};

const CALLS: usize = 50_000;
const LIMIT_MIB: f64 = 12.0;

/// Time until the threads of the start have ended.
const SETTLE_TIME: Duration = Duration::from_millis(1_500);

/// Measures after the registration, and after the calls.
pub(crate) async fn measure() -> Result<Vec<Row>> {
    let serving_agent = Testbed::create("dgx-h100")?.serve(&[]).await?;
    tokio::time::sleep(SETTLE_TIME).await;
    let idle = Resident::of(serving_agent.agent.id())?;
    let mut client = Client::new(serving_agent.socket()?.dial().await?);
    let request = allocation(&serving_agent.ids());
    for _ in 0..CALLS {
        client.allocate(request.clone()).await?;
    }
    let after_calls = Resident::of(serving_agent.agent.id())?;
    Ok(vec![
        row("resident memory, idle, 8 GPUs", idle),
        row(&format!("resident memory after {CALLS} Allocate"), after_calls),
    ])
}

fn row(label: &str, resident: Resident) -> Row {
    let (total, anonymous) = (mib(resident.total), mib(resident.anonymous));
    let without_nvml = resident.without_nvml_mib();
    Row::single_value(label, format!("{without_nvml:.1} MiB"))
        .with_comparison(format!("anonymous {anonymous:.1}, with NVML {total:.1}"))
        .with_budget(without_nvml, LIMIT_MIB, " MiB")
}
