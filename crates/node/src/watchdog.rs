//! The watchdog over shared GPUs: it measures from outside of the containers how much memory each pod uses, and acts
//! against those that use more than they have.
//!
//! ```text
//!  ledger ── shared GPUs, limits ─────┐
//!  driver ── processes, memory ───────┼─> usage of each holder ─> three in a row above the limit
//!  /proc ─── containers of processes ─┘            │                    │
//!  API server ── claims of pods ──────┘            └─> metrics          └─> log, event, evict, kill
//! ```
//!
//! A container can change its environment, link its programs statically, or use managed memory: the driver's list of
//! processes shows its memory all the same.
//!
//! # Guarantees
//!
//! Without a shared GPU nothing is measured. A GPU whose driver does not answer is not asked again before it does, and
//! delays no other. A process of another container is never ended.

mod accounts;
mod action;
mod limits;
mod snapshot;
mod tenants;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use windlass_allocations::ledger::{Ledger, SharedLedger};
use windlass_cluster::{Client, Pods};
use windlass_config::{Policy, WatchdogAction, WatchdogPolicy};
use windlass_core::device::DeviceId;
use windlass_discovery::live_driver::{GpuProcess, LiveDriver, ProcessError};
use windlass_host::{blocking, causes, clock::Clock, keyed::Tasks, optional, watch::changed};

use self::{
    accounts::{Accounts, HeldMemory, Usage},
    action::Actions,
    limits::{GpuLimits, Holders, Limits, limits},
    snapshot::{GpuStates, snapshot},
    tenants::Tenants,
};
use crate::{
    metrics::{SharedMemory, WatchdogMetrics},
    shares::LimitRecords,
};

/// Dependencies.
pub(crate) struct Deps {
    pub(crate) policy: watch::Receiver<Arc<Policy>>,
    pub(crate) ledger: SharedLedger,
    pub(crate) driver: LiveDriver,
    /// Records and notes of the driver's limits.
    pub(crate) records: LimitRecords,
    pub(crate) cluster: Option<Client>,
    pub(crate) clock: Clock,
    pub(crate) metrics: WatchdogMetrics,
    /// Memory on shared GPUs, for metrics.
    pub(crate) publish: watch::Sender<Arc<SharedMemory>>,
}

/// The part that watches shared GPUs.
pub(crate) struct Watchdog {
    policy: watch::Receiver<Arc<Policy>>,
    ledger: watch::Receiver<Ledger>,
    driver: LiveDriver,
    records: LimitRecords,
    /// Running measurements. A GPU has one at a time.
    looks: Tasks<DeviceId, Look>,
    accounts: Accounts,
    tenants: Tenants,
    actions: Actions,
    running: JoinSet<()>,
    /// Pods with processes on each GPU at its latest measurement.
    present: BTreeMap<DeviceId, BTreeSet<String>>,
    states: GpuStates,
    publish: watch::Sender<Arc<SharedMemory>>,
}

/// A measurement of a GPU.
struct Look {
    processes: Result<Vec<GpuProcess>, ProcessError>,
    /// Pods that the driver limits, by the kubelet's UID.
    limited: BTreeSet<String>,
}

// === impl Watchdog ===

impl Watchdog {
    pub(crate) fn new(deps: Deps) -> Self {
        let pods = deps.cluster.map(Pods::new);
        let host = deps.driver.host().clone();
        Self {
            policy: deps.policy,
            ledger: deps.ledger.watch(),
            driver: deps.driver,
            looks: Tasks::default(),
            accounts: Accounts::default(),
            tenants: Tenants::new(pods.clone()),
            actions: Actions { pods, host, clock: deps.clock, metrics: deps.metrics },
            running: JoinSet::new(),
            present: BTreeMap::new(),
            states: GpuStates::default(),
            records: deps.records,
            publish: deps.publish,
        }
    }

    /// Measures while GPUs are shared, until stopped.
    pub(crate) async fn run(self, stop: CancellationToken) {
        // On the heap: requests make it large.
        stop.run_until_cancelled(Box::pin(self.watch())).await;
    }

    async fn watch(mut self) {
        let mut next = Instant::now();
        loop {
            let WatchdogPolicy { action, interval } = self.policy.borrow_and_update().watchdog;
            let mut limits = limits(&self.ledger.borrow_and_update());
            if action == WatchdogAction::Off {
                limits.clear();
            }
            self.states.acts = action.acts();
            self.forget(&limits);
            let is_due = !limits.is_empty() && next <= Instant::now();
            if is_due {
                self.measure(&limits);
                next = Instant::now() + interval;
            }
            let sleeping = (!limits.is_empty()).then(|| sleep_until(next));
            tokio::select! {
                () = changed(&mut self.policy) => {}
                () = changed(&mut self.ledger) => {}
                () = optional(sleeping) => {}
                Some((device, look)) = self.looks.next() => {
                    if let Some(gpu) = limits.get(&device) {
                        self.judge(&device, look, gpu, action);
                    }
                }
                () = self.tenants.next() => {}
                Some(_) = self.running.join_next() => {}
            }
        }
    }

    /// Forgets what has no limit any more.
    fn forget(&mut self, limits: &Limits) {
        self.accounts.retain(limits);
        self.states.retain(limits);
        self.present.retain(|device, _| limits.contains_key(device));
        self.tenants.retain(&self.present.values().flatten().collect());
        let memory = snapshot(limits, &self.accounts, &self.tenants, &self.states);
        windlass_host::watch::publish(&self.publish, Arc::new(memory));
    }

    fn measure(&mut self, limits: &Limits) {
        for device in limits.keys() {
            if !self.looks.is_busy(device) {
                let (driver, records, gpu) =
                    (self.driver.clone(), self.records.clone(), device.clone());
                self.looks.begin(device.clone(), async move {
                    let processes = driver.processes(&gpu).await;
                    let limited = blocking(move || records.limited(driver.host(), &gpu)).await;
                    Look { processes, limited }
                });
            }
        }
    }

    /// Takes in the processes of a GPU, and acts against violations.
    fn judge(&mut self, device: &DeviceId, look: Look, gpu: &GpuLimits, action: WatchdogAction) {
        self.states.limited.insert(device.clone(), look.limited);
        let processes = match look.processes {
            Ok(processes) => processes,
            Err(error) => return self.lose(device, &error),
        };
        if self.states.blind.remove(device).is_some() {
            tracing::info!(%device, "memory of a shared GPU is measured again");
        }
        let containers = processes.iter().filter_map(|process| process.container.as_ref());
        containers.clone().for_each(|container| self.tenants.want(container));
        let pods = containers.map(|container| container.pod.clone()).collect();
        self.present.insert(device.clone(), pods);
        let used = self.used(processes, gpu);
        for violation in self.accounts.take(device, used, Instant::now()) {
            let containers = violation.usage.processes.iter().map(|process| &process.container);
            let tenants: BTreeMap<_, _> = containers
                .filter_map(|it| Some((it.pod.clone(), self.tenants.get(&it.pod)?.pod.clone())))
                .collect();
            self.running.spawn(self.actions.clone().take(action, violation, tenants));
        }
    }

    /// Processes of a GPU by the holders that they count for. Those of the host and of pods without a limit count for
    /// nobody.
    fn used(&self, processes: Vec<GpuProcess>, gpu: &GpuLimits) -> BTreeMap<Holders, Usage> {
        let mut used: BTreeMap<Holders, Usage> = BTreeMap::new();
        for GpuProcess { pid, container, memory_bytes } in processes {
            let Some(container) = container else { continue };
            let holders = self.holders(&container.pod, gpu);
            let Some(limit) = gpu.of(&holders) else { continue };
            let usage = used.entry(holders).or_insert_with(|| Usage::none_of(limit));
            usage.processes.push(HeldMemory { pid, container, bytes: memory_bytes });
        }
        used
    }

    fn holders(&self, pod: &str, gpu: &GpuLimits) -> Holders {
        let mut holders: Holders = gpu.share_of(pod).into_iter().cloned().collect();
        if let Some(tenant) = self.tenants.get(pod).filter(|_| gpu.has_claims()) {
            let claims = gpu.claims(&tenant.pod.namespace, &tenant.parts.claims);
            holders.extend(claims.cloned());
        }
        holders
    }

    /// Notes that a GPU cannot be measured, and logs it once per reason.
    fn lose(&mut self, device: &DeviceId, error: &ProcessError) {
        self.accounts.lose(device);
        let why = causes(error);
        if self.states.blind.insert(device.clone(), why.clone()).as_ref() != Some(&why) {
            tracing::warn!(%device, why, "memory of a shared GPU not measured: no limit is watched");
        }
    }
}
