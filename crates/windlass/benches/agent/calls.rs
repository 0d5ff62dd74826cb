//! Calls over the agent's socket, each in turn with an empty call over another process's socket.
//!
//! The one who asks, the empty server and the agent are three processes on one core: where the kernel
//! puts each, and how long a core takes to wake, would otherwise decide the ratio from run to run. So
//! the ratios are of work; between two cores every call takes longer and the ratios are smaller.

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

/// The client of one plugin, as the kubelet has it.
pub(crate) type Client = DevicePluginClient<Channel>;

/// Measured request.
#[derive(Clone, Debug)]
enum Call {
    Options,
    Allocate(AllocateRequest),
    Prefer(PreferredAllocationRequest),
}

/// A call, whom it is made to, and how long it took each time.
struct MeasuredCall {
    name: &'static str,
    client: Client,
    call: Call,
    limit: Option<f64>,
    samples: Samples,
}

/// Measures what the kubelet asks on a pod's way.
pub(crate) async fn measure() -> Result<Vec<Row>> {
    let everywhere = sched_getaffinity(None)?;
    pin_to_one_core(&everywhere)?;
    let rows = measure_on_one_core().await;
    sched_setaffinity(None, &everywhere)?;
    rows
}

async fn measure_on_one_core() -> Result<Vec<Row>> {
    let small = Testbed::create("dgx-h100")?.serve(&[]).await?;
    let large = Testbed::create("16-gpu")?.serve(&[]).await?;
    let (_server, socket) = empty::start(&small.testbed.path("empty")).await?;
    let (_talker, words) = empty::start(&small.testbed.path("words")).await?;
    let mut rows = Vec::new();
    for call in &mut calls(&client(&words).await?, &small, &large).await? {
        let mut baseline = MeasuredCall::new("", &client(&socket).await?, Call::Options);
        run_alternately(&mut baseline, call).await?;
        rows.push(call.row(&baseline.samples));
    }
    Ok(rows)
}

/// Each of two processes is called as often as the other, and after the other: both have their
/// caches swept to the same degree.
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
    let last = (0..CpuSet::MAX_CPU).rev().find(|&core| allowed.is_set(core));
    let mut one = CpuSet::new();
    one.set(last.context("there is a core")?);
    Ok(sched_setaffinity(None, &one)?)
}

async fn calls(
    words: &Client,
    small: &ServingAgent,
    large: &ServingAgent,
) -> Result<Vec<MeasuredCall>> {
    let (eight, sixteen) = (small.ids(), large.ids());
    ensure!((eight.len(), sixteen.len()) == (8, 16), "the profiles have 8 and 16 GPUs");
    let (small, large) = (client(&small.socket()?).await?, client(&large.socket()?).await?);
    Ok(vec![
        MeasuredCall::new("empty call to the agent", &small, Call::Options),
        MeasuredCall::new("Allocate, 1 device", &small, Call::allocate(&eight[..1]))
            .with_limit(MAX_ALLOCATE_RATIO),
        MeasuredCall::new("Allocate, 8 devices", &small, Call::allocate(&eight))
            .with_limit(MAX_ALLOCATE_RATIO),
        MeasuredCall::new("the same words without the agent", words, Call::allocate(&eight)),
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

    /// May take this many empty calls.
    fn with_limit(self, limit: f64) -> Self {
        Self { limit: Some(limit), ..self }
    }

    async fn run_once(&mut self) -> Result<()> {
        let call = self.call.clone();
        let begun = Instant::now();
        match call {
            Call::Options => drop(self.client.get_device_plugin_options(Empty {}).await?),
            Call::Allocate(request) => drop(self.client.allocate(request).await?),
            Call::Prefer(request) => drop(self.client.get_preferred_allocation(request).await?),
        }
        self.samples.push(begun.elapsed());
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
