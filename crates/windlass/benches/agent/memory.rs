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

/// When the threads that helped to start are gone.
const SETTLE_TIME: Duration = Duration::from_millis(1_500);

/// Measures after the registration, and after the calls.
pub(crate) async fn measure() -> Result<Vec<Row>> {
    let served = Testbed::create("dgx-h100")?.serve(&[]).await?;
    tokio::time::sleep(SETTLE_TIME).await;
    let idle = Resident::of(served.agent.id())?;
    let mut client = Client::new(served.socket()?.dial().await?);
    let request = allocation(&served.ids());
    for _ in 0..CALLS {
        client.allocate(request.clone()).await?;
    }
    let worked = Resident::of(served.agent.id())?;
    Ok(vec![
        row("resident memory, idle, 8 GPUs", idle),
        row(&format!("resident memory after {CALLS} Allocate"), worked),
    ])
}

fn row(what: &str, resident: Resident) -> Row {
    let (total, own) = (mib(resident.total), mib(resident.anonymous));
    let without_nvml = resident.without_nvml_mib();
    Row::single_value(what, format!("{without_nvml:.1} MiB"))
        .with_comparison(format!("own {own:.1}, with NVML {total:.1}"))
        .with_budget(without_nvml, LIMIT_MIB, " MiB")
}
