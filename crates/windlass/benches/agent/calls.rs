//! Duration of calls to the agent, relative to an empty call to a server that does nothing.
//!
//! The client, the empty server and the agent are three processes on one core. On several cores, the ratios would
//! depend on the kernel's scheduling and on the wake-up times of the cores. On one core they compare work. Between two
//! cores every call takes longer, and the ratios are smaller.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tonic::transport::Channel;
use windlass_kubelet_api::{
    deviceplugin::{
        AllocateRequest, ContainerAllocateRequest, ContainerPreferredAllocationRequest, Empty,
        PreferredAllocationRequest, device_plugin_client::DevicePluginClient,
    },
    socket::SocketPath,
};

use crate::{
    empty,
    report::Row,
    samples::{Samples, ShortDuration},
    stage::{ServingAgent, Testbed},
};

const WARM_UP: usize = 500;
const ROUNDS: usize = 4_000;
const MAX_ALLOCATE_RATIO: f64 = 1.3;

/// gRPC client of one plugin, as in the kubelet.
pub(crate) type Client = DevicePluginClient<Channel>;

/// Measured request.
#[derive(Clone, Debug)]
enum Call {
    Options,
    Allocate(AllocateRequest),
    Prefer(PreferredAllocationRequest),
}

/// A call with its client, its budget and its measured durations.
struct MeasuredCall {
    name: &'static str,
    client: Client,
    call: Call,
    limit: Option<f64>,
    samples: Samples,
}

/// Measures the calls that the kubelet makes to start a pod.
pub(crate) async fn measure() -> Result<Vec<Row>> {
    let allowed = sched_getaffinity(None)?;
    pin_to_one_core(&allowed)?;
    let rows = measure_on_one_core().await;
    sched_setaffinity(None, &allowed)?;
    rows
}

async fn measure_on_one_core() -> Result<Vec<Row>> {
    let small_agent = Testbed::create("dgx-h100")?.serve(&[]).await?;
    let large_agent = Testbed::create("16-gpu")?.serve(&[]).await?;
    let (_server, socket) = empty::start(&small_agent.testbed.path("empty")).await?;
    let (_second_server, second_socket) =
        empty::start(&small_agent.testbed.path("second-empty")).await?;
    let mut rows = Vec::new();
    for call in &mut calls(&client(&second_socket).await?, &small_agent, &large_agent).await? {
        let mut baseline = MeasuredCall::new("", &client(&socket).await?, Call::Options);
        run_alternately(&mut baseline, call).await?;
        rows.push(call.row(&baseline.samples));
    }
    Ok(rows)
}

/// Calls both servers alternately, so that the CPU caches are equally cold for both.
async fn run_alternately(baseline: &mut MeasuredCall, call: &mut MeasuredCall) -> Result<()> {
    for round in 0..WARM_UP + ROUNDS {
        if round == WARM_UP {
            (baseline.samples, call.samples) = Default::default();
        }
        baseline.run_once().await?;
        call.run_once().await?;
    }
    Ok(())
}

async fn client(socket: &SocketPath) -> Result<Client> {
    Ok(Client::new(socket.dial().await?))
}

/// Pins this process and its children to one processor.
fn pin_to_one_core(allowed: &CpuSet) -> Result<()> {
    let core = (0..CpuSet::MAX_CPU).rev().find(|&core| allowed.is_set(core));
    let mut one_core = CpuSet::new();
    one_core.set(core.context("no core is allowed for this process")?);
    Ok(sched_setaffinity(None, &one_core)?)
}

async fn calls(
    empty_client: &Client,
    small_agent: &ServingAgent,
    large_agent: &ServingAgent,
) -> Result<Vec<MeasuredCall>> {
    let (eight, sixteen) = (small_agent.ids(), large_agent.ids());
    ensure!((eight.len(), sixteen.len()) == (8, 16), "the profiles have 8 and 16 GPUs");
    let small = client(&small_agent.socket()?).await?;
    let large = client(&large_agent.socket()?).await?;
    Ok(vec![
        MeasuredCall::new("empty call to the agent", &small, Call::Options),
        MeasuredCall::new("Allocate, 1 device", &small, Call::allocate(&eight[..1]))
            .with_limit(MAX_ALLOCATE_RATIO),
        MeasuredCall::new("Allocate, 8 devices", &small, Call::allocate(&eight))
            .with_limit(MAX_ALLOCATE_RATIO),
        MeasuredCall::new(
            "the same response without the agent",
            empty_client,
            Call::allocate(&eight),
        ),
        MeasuredCall::new("GetPreferredAllocation, 8 of 8", &small, Call::prefer(&eight, 8)),
        MeasuredCall::new("GetPreferredAllocation, 4 of 8", &small, Call::prefer(&eight, 4)),
        MeasuredCall::new("GetPreferredAllocation, 8 of 16", &large, Call::prefer(&sixteen, 8)),
    ])
}

/// A request for these devices, for one container.
pub(crate) fn allocation(ids: &[String]) -> AllocateRequest {
    let container = ContainerAllocateRequest { devices_ids: ids.to_vec() };
    AllocateRequest { container_requests: vec![container] }
}

// === impl Call ===

impl Call {
    fn allocate(ids: &[String]) -> Self {
        Self::Allocate(allocation(ids))
    }

    fn prefer(ids: &[String], size: i32) -> Self {
        let container = ContainerPreferredAllocationRequest {
            available_device_i_ds: ids.to_vec(),
            must_include_device_i_ds: Vec::new(),
            allocation_size: size,
        };
        Self::Prefer(PreferredAllocationRequest { container_requests: vec![container] })
    }
}

// === impl MeasuredCall ===

impl MeasuredCall {
    fn new(name: &'static str, client: &Client, call: Call) -> Self {
        Self { name, client: client.clone(), call, limit: None, samples: Samples::default() }
    }

    /// Sets the budget, as a multiple of the empty call.
    fn with_limit(self, limit: f64) -> Self {
        Self { limit: Some(limit), ..self }
    }

    async fn run_once(&mut self) -> Result<()> {
        let call = self.call.clone();
        let started = Instant::now();
        match call {
            Call::Options => drop(self.client.get_device_plugin_options(Empty {}).await?),
            Call::Allocate(request) => drop(self.client.allocate(request).await?),
            Call::Prefer(request) => drop(self.client.get_preferred_allocation(request).await?),
        }
        self.samples.push(started.elapsed());
        Ok(())
    }

    fn row(&self, baseline: &Samples) -> Row {
        let ratio = self.samples.ratio_to(baseline);
        let row = Row::with_samples(self.name, &self.samples).with_comparison(format!(
            "{ratio:.2} x an empty call of {}",
            ShortDuration(baseline.median())
        ));
        match self.limit {
            Some(limit) => row.with_budget(ratio, limit, " x"),
            None => row,
        }
    }
}
