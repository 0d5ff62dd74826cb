//! The watchdog over shared GPUs: it measures the memory of each pod from outside its containers, and acts against pods
//! that use more than their share.
//!
//! ```text
//!  ledger, kubelet's checkpoint,      ┐
//!  GPU fractions ──────────── limits ─┤
//!  driver, fdinfo ── memory ──────────┼─> usage of each holder ─> three in a row above the limit
//!  /proc ─── containers of processes ─┘            │                    │
//!  API server ── claims of pods ──────┘            └─> metrics          └─> log, event, condition, evict, kill
//! ```
//!
//! A container can evade a limit inside it: it changes its environment or links its programs statically. The driver's
//! list of processes still shows its memory, except managed memory, which NVIDIA's driver counts for no process. The
//! watchdog queries NVIDIA's driver once per GPU. One scan of the open files (fdinfo) of pods with limits serves all
//! GPUs of the kernel's DRM drivers.
//!
//! # Guarantees
//!
//! Measurements run only while a GPU is shared. A GPU has one query at a time: a driver that does not answer delays no
//! other GPU. A kill reaches only a process that still runs in its container.

mod accounts;
mod action;
mod compute;
mod limits;
mod snapshot;
mod tenants;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
};

use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use windlass_allocations::{
    follow::{Allocations, AllocationsReader, FollowGuard},
    ledger::{Ledger, SharedLedger},
};
use windlass_cdi::memory_limits::{self, LimitedHolders};
use windlass_cluster::{BoundPod, Client, Pods};
use windlass_config::{Policy, WatchdogAction, WatchdogPolicy};
use windlass_core::{device::DeviceId, pci::PciAddress};
use windlass_discovery::live_driver::LiveDriver;
use windlass_dra::MemoryExcesses;
use windlass_host::{
    blocking, causes,
    clock::Clock,
    container::GpuProcess,
    drm_clients::{DrmError, DrmProcesses},
    keyed::KeyedTasks,
    or_pending,
    watch::changed,
};
use windlass_lifecycle::{
    gpu_use::{DriverCache, GpuUse, ProcessError},
    mps::MpsClients,
};
use windlass_resources::NodeState;

use self::{
    accounts::{MemoryAccounts, Usage, Violation},
    action::Actions,
    compute::ComputeAccounts,
    limits::{GpuLimits, Holders, Limits, add_fractions, add_replicas, limits, merge_overlapping},
    snapshot::{GpuStates, snapshot},
    tenants::Tenants,
};
use crate::{
    metrics::{SharedGpus, WatchdogMetrics},
    nv_fractions::FractionLimits,
};

/// Dependencies.
pub(crate) struct Deps {
    pub(crate) policy: watch::Receiver<Arc<Policy>>,
    pub(crate) ledger: SharedLedger,
    /// Snapshots of the node, with the memory of each replica.
    pub(crate) state: watch::Receiver<Arc<NodeState>>,
    pub(crate) allocations: AllocationsReader,
    /// Limits of pods with GPU fractions.
    pub(crate) fractions: watch::Receiver<Arc<FractionLimits>>,
    pub(crate) driver: LiveDriver,
    pub(crate) mps: MpsClients,
    /// State folder: has the records of limits that the driver enforces.
    pub(crate) state_dir: PathBuf,
    pub(crate) cluster: Option<Client>,
    pub(crate) clock: Clock,
    pub(crate) metrics: WatchdogMetrics,
    /// Shared GPUs, for metrics.
    pub(crate) shared_gpus: watch::Sender<Arc<SharedGpus>>,
    /// Claims above their memory, for their status.
    pub(crate) excesses: watch::Sender<Arc<MemoryExcesses>>,
}

/// Task that measures shared GPUs and acts against violations.
pub(crate) struct Watchdog {
    policy: watch::Receiver<Arc<Policy>>,
    ledger: watch::Receiver<Ledger>,
    state: watch::Receiver<Arc<NodeState>>,
    reader: AllocationsReader,
    allocations: watch::Receiver<Arc<Allocations>>,
    fractions: watch::Receiver<Arc<FractionLimits>>,
    /// Subscription to the kubelet's checkpoint, while replicas have a given memory.
    subscription: Option<FollowGuard>,
    driver: LiveDriver,
    state_dir: PathBuf,
    /// Running measurements. A GPU has one at a time.
    measurements: KeyedTasks<DeviceId, Result<GpuUse, ProcessError>>,
    /// The driver's answers at each GPU's last measurement.
    driver_caches: BTreeMap<DeviceId, DriverCache>,
    /// The running measurement of all GPUs of DRM drivers.
    drm: KeyedTasks<(), Result<DrmProcesses, DrmError>>,
    /// The running read of the limit records.
    limit_records: KeyedTasks<(), LimitedHolders>,
    accounts: MemoryAccounts,
    compute: ComputeAccounts,
    tenants: Tenants,
    actions: Actions,
    running_actions: JoinSet<()>,
    /// Pods with processes on each GPU at its latest measurement.
    present_pods: BTreeMap<DeviceId, BTreeSet<String>>,
    /// Pods with processes anywhere, if claims have limits on GPUs of DRM drivers: any may use one.
    candidates: BTreeSet<String>,
    states: GpuStates,
    shared_gpus: watch::Sender<Arc<SharedGpus>>,
    excesses: watch::Sender<Arc<MemoryExcesses>>,
}

// === impl Watchdog ===

impl Watchdog {
    pub(crate) fn new(deps: Deps) -> Self {
        let pods = deps.cluster.map(Pods::new);
        let host = deps.driver.host().clone();
        Self {
            policy: deps.policy,
            ledger: deps.ledger.watch(),
            state: deps.state,
            allocations: deps.allocations.watch(),
            reader: deps.allocations,
            fractions: deps.fractions,
            subscription: None,
            driver: deps.driver,
            measurements: KeyedTasks::default(),
            driver_caches: BTreeMap::new(),
            drm: KeyedTasks::default(),
            limit_records: KeyedTasks::default(),
            accounts: MemoryAccounts::default(),
            compute: ComputeAccounts::default(),
            tenants: Tenants::new(pods.clone()),
            actions: Actions {
                pods,
                host,
                mps: deps.mps,
                clock: deps.clock,
                metrics: deps.metrics,
            },
            running_actions: JoinSet::new(),
            present_pods: BTreeMap::new(),
            candidates: BTreeSet::new(),
            states: GpuStates::default(),
            state_dir: deps.state_dir,
            shared_gpus: deps.shared_gpus,
            excesses: deps.excesses,
        }
    }

    /// Measures while GPUs are shared, until stopped.
    pub(crate) async fn run(self, stop: CancellationToken) {
        // On the heap: requests make it large.
        stop.run_until_cancelled(Box::pin(self.watch())).await;
    }

    async fn watch(mut self) {
        let (mut last_round, mut limits): (Option<Instant>, _) = (None, self.refresh_limits());
        loop {
            let WatchdogPolicy { action, interval } = self.policy.borrow().watchdog;
            self.states.configure(action, interval);
            let now = Instant::now();
            if !limits.is_empty()
                && last_round.is_none_or(|last_round| last_round + interval <= now)
            {
                // A scrape sees the last complete round.
                self.publish(&limits);
                self.measure(&limits);
                last_round = Some(now);
            }
            let next_round =
                last_round.filter(|_| !limits.is_empty()).map(|last_round| last_round + interval);
            tokio::select! {
                () = changed(&mut self.policy) => limits = self.refresh_limits(),
                () = changed(&mut self.ledger) => limits = self.refresh_limits(),
                () = changed(&mut self.state) => limits = self.refresh_limits(),
                () = changed(&mut self.fractions) => limits = self.refresh_limits(),
                () = changed(&mut self.allocations), if self.subscription.is_some() => {
                    limits = self.refresh_limits();
                }
                () = or_pending(next_round.map(sleep_until)) => {}
                Some((device, measured)) = self.measurements.join_next() => {
                    if let Some(gpu) = limits.get(&device) {
                        self.evaluate(&device, measured, gpu, action);
                    }
                }
                Some(((), scan)) = self.drm.join_next() => self.evaluate_drm(&scan, &limits, action),
                Some(((), limited)) = self.limit_records.join_next() => self.states.limited = limited,
                () = self.tenants.next() => {}
                Some(_) = self.running_actions.join_next() => {}
            }
        }
    }

    /// Computes the current limits, and drops the state of holders without one.
    fn refresh_limits(&mut self) -> Limits {
        let is_off = self.policy.borrow_and_update().watchdog.action == WatchdogAction::Off;
        let state = self.state.borrow_and_update().clone();
        let needs_checkpoint = !is_off && !state.replica_memory.is_empty();
        if needs_checkpoint != self.subscription.is_some() {
            self.subscription = needs_checkpoint.then(|| self.reader.follow());
        }
        let mut limits = limits(&self.ledger.borrow_and_update());
        if needs_checkpoint {
            add_replicas(&mut limits, &self.allocations.borrow_and_update(), &state);
        }
        add_fractions(&mut limits, &self.fractions.borrow_and_update());
        if is_off {
            limits.clear();
        }
        self.drop_unlimited(&limits);
        self.publish(&limits);
        limits
    }

    fn drop_unlimited(&mut self, limits: &Limits) {
        self.accounts.retain(limits);
        self.compute.retain(limits);
        self.states.retain(limits);
        self.present_pods.retain(|device, _| limits.contains_key(device));
        self.driver_caches.retain(|device, _| limits.contains_key(device));
        self.tenants
            .retain(&self.present_pods.values().flatten().chain(&self.candidates).collect());
    }

    fn publish(&mut self, limits: &Limits) {
        self.states.unidentified = self.unidentified(limits);
        let gpus = snapshot(limits, &self.accounts, &self.tenants, &self.states);
        windlass_host::watch::publish_if_changed(&self.shared_gpus, Arc::new(gpus));
        let excesses = Arc::new(self.accounts.excesses());
        windlass_host::watch::publish_if_changed(&self.excesses, excesses);
    }

    /// Begins a measurement of each GPU that answered the last one.
    fn measure(&mut self, limits: &Limits) {
        let is_reading = self.drm.is_busy(&());
        for device in limits.keys() {
            let is_drm = self.drm_gpu(device).is_some();
            let is_busy = if is_drm { is_reading } else { self.measurements.is_busy(device) };
            if is_busy && is_drm {
                // The running scan also covers a GPU that became shared after its start.
                self.states.record_start_once(device);
            }
            if is_busy && self.states.is_overdue(device) {
                self.mark_unmeasured(device, &ProcessError::Unresponsive.to_string());
            }
            if is_busy {
                continue;
            }
            self.states.record_start(device);
            let driver = self.driver.clone();
            if !is_drm {
                let gpu = device.clone();
                let cache = self.driver_caches.remove(device).unwrap_or_default();
                // Near a violation, the measurement needs a new process list.
                let is_fresh = self.accounts.is_near_violation(device);
                let cache = if is_fresh { cache.without_list() } else { cache };
                let measurement = async move { GpuUse::measure(&driver, &gpu, cache).await };
                self.measurements.submit(device.clone(), measurement);
            } else if !self.drm.is_busy(&()) {
                let (host, pods) = (driver.host().clone(), self.drm_pods(limits));
                self.drm.submit((), blocking(move || DrmProcesses::read(&host, &pods)));
            }
        }
        if !self.limit_records.is_busy(&()) {
            let (folder, host) = (self.state_dir.clone(), self.driver.host().clone());
            self.limit_records
                .submit((), blocking(move || memory_limits::limited_holders(&folder, &host)));
        }
    }

    /// Pods with limits on GPUs of DRM drivers: pods with shares, and pods whose claims are known.
    fn drm_pods(&self, limits: &Limits) -> BTreeSet<String> {
        let drm_limits = limits.iter().filter(|(device, _)| self.drm_gpu(device).is_some());
        let pods_of_gpu = |gpu: &GpuLimits| {
            let holders = gpu.iter().map(|(holder, _)| holder);
            let share_pods = holders.filter_map(|holder| Some(holder.pod_of_share()?.to_owned()));
            share_pods.chain(self.tenants.users(gpu).cloned()).collect::<Vec<_>>()
        };
        drm_limits.flat_map(|(_, gpu)| pods_of_gpu(gpu)).collect()
    }

    /// Requests the claims of all pods with processes, if a claim has a limit on a GPU of a DRM driver. Any pod may use
    /// that claim, and an idle pod may start to.
    fn request_claims(&mut self, pods_with_processes: &BTreeSet<String>, limits: &Limits) {
        let mut drm_limits = limits.iter().filter(|(device, _)| self.drm_gpu(device).is_some());
        let has_claims = drm_limits.any(|(_, gpu)| gpu.has_claims());
        self.candidates = if has_claims { pods_with_processes.clone() } else { BTreeSet::new() };
        self.candidates.iter().for_each(|pod| self.tenants.look_up_claims(pod));
    }

    /// Pods that may use a GPU with claims, but whose own claims the API server has not named. Their processes count
    /// for no holder.
    fn unidentified(&self, limits: &Limits) -> BTreeMap<DeviceId, BTreeSet<String>> {
        let unidentified = |device| {
            let is_drm = self.drm_gpu(device).is_some();
            let pods = if is_drm { Some(&self.candidates) } else { self.present_pods.get(device) };
            let pods = pods.into_iter().flatten();
            pods.filter(|pod| self.tenants.is_unknown(pod)).cloned().collect()
        };
        let with_claims = limits.iter().filter(|(_, gpu)| gpu.has_claims());
        with_claims.map(|(device, _)| (device.clone(), unidentified(device))).collect()
    }

    /// PCI address of a GPU of a DRM driver.
    fn drm_gpu(&self, device: &DeviceId) -> Option<PciAddress> {
        self.state.borrow().inventory.get(device.as_str())?.drm_pci_address()
    }

    /// Handles a scan of the clients of DRM drivers.
    fn evaluate_drm(
        &mut self,
        scan: &Result<DrmProcesses, DrmError>,
        limits: &Limits,
        action: WatchdogAction,
    ) {
        if let Ok(scan) = scan {
            let unreadable_pods = scan.unreadable_pods();
            let tenants = unreadable_pods.keys().filter_map(|pod| self.tenants.get(pod));
            let claims: BTreeSet<_> = tenants
                .flat_map(|tenant| {
                    limits
                        .values()
                        .flat_map(|gpu| gpu.claims(&tenant.pod.namespace, &tenant.details.claims))
                })
                .map(|claim| claim.uid.clone())
                .collect();
            self.states.set_hidden(unreadable_pods, claims);
            self.request_claims(scan.pods_with_processes(), limits);
        }
        for (device, gpu) in limits {
            let Some(address) = self.drm_gpu(device) else { continue };
            match scan {
                Ok(scan) => {
                    let processes = scan.on_gpu(address).map_err(ProcessError::from);
                    let in_use = |processes| GpuUse { processes, ..GpuUse::default() };
                    self.evaluate(device, processes.map(in_use), gpu, action);
                }
                Err(error) => self.mark_unmeasured(device, &causes(error)),
            }
        }
    }

    /// Handles a measurement of a GPU, and acts against violations.
    fn evaluate(
        &mut self,
        device: &DeviceId,
        measured: Result<GpuUse, ProcessError>,
        gpu: &GpuLimits,
        action: WatchdogAction,
    ) {
        let GpuUse { processes, uncounted_bytes, cache } = match measured {
            Ok(measured) => measured,
            Err(error) => return self.mark_unmeasured(device, &causes(&error)),
        };
        if self.states.record_success(device) {
            tracing::info!(%device, "memory of a shared GPU is measured again");
        }
        self.states.record_uncounted(device, uncounted_bytes);
        self.driver_caches.insert(device.clone(), cache);
        let containers = processes.iter().map(|process| &process.container);
        containers.clone().for_each(|container| self.tenants.look_up_container(container));
        let pods = containers.map(|container| container.pod.clone()).collect();
        self.present_pods.insert(device.clone(), pods);
        let usage = self.usage_by_holders(processes, gpu);
        for excess in self.compute.record(device, &usage, gpu) {
            let tenants = self.bound_pods(excess.pods.iter());
            self.running_actions.spawn(self.actions.clone().report_compute(excess, tenants));
        }
        for violation in self.accounts.record(device, usage, Instant::now(), action.is_enforcing())
        {
            let pods = violation.usage.processes.iter().map(|process| &process.container.pod);
            let tenants = self.bound_pods(pods);
            let holders = violation.holders.iter().map(|holder| self.tenants.with_name(holder));
            let violation = Violation { holders: holders.collect(), ..violation };
            self.running_actions.spawn(self.actions.clone().perform(action, violation, tenants));
        }
    }

    /// Those of these pods that the API server has named, by UID.
    fn bound_pods<'a>(&self, pods: impl Iterator<Item = &'a String>) -> BTreeMap<String, BoundPod> {
        pods.filter_map(|uid| Some((uid.clone(), self.tenants.get(uid)?.pod.clone()))).collect()
    }

    /// Usage of a GPU by the holders that its processes count for. Processes of the host and of pods without a limit
    /// are left out.
    fn usage_by_holders(
        &self,
        processes: Vec<GpuProcess>,
        gpu: &GpuLimits,
    ) -> BTreeMap<Holders, Usage> {
        let mut held_processes = Vec::new();
        for process in processes {
            let holders = self.holders(&process.container.pod, gpu);
            if !holders.is_empty() {
                held_processes.push((holders, process));
            }
        }
        let groups = merge_overlapping(held_processes.iter().map(|(holders, _)| holders));
        let mut usage_by_group: BTreeMap<Holders, Usage> = BTreeMap::new();
        for (holders, process) in held_processes {
            let group = groups.iter().find(|group| group.is_superset(&holders));
            let group = group.expect("each set is part of a group");
            let Some(limit) = gpu.combined(group) else { continue };
            let usage = usage_by_group.entry(group.clone()).or_insert_with(|| Usage::zero(limit));
            usage.processes.push(process);
        }
        usage_by_group
    }

    /// Holders that a pod's processes count for; none while its claims are unknown and may matter.
    fn holders(&self, pod: &str, gpu: &GpuLimits) -> Holders {
        let mut holders: Holders = gpu.share_of(pod).into_iter().cloned().collect();
        if gpu.has_claims() {
            let Some(tenant) = self.tenants.get(pod) else { return Holders::new() };
            holders.extend(gpu.claims(&tenant.pod.namespace, &tenant.details.claims).cloned());
        }
        holders
    }

    /// Marks a GPU as not measured, and logs each reason once.
    fn mark_unmeasured(&mut self, device: &DeviceId, reason: &str) {
        self.accounts.drop_measurement(device);
        if self.states.record_failure(device, reason) {
            tracing::warn!(%device, why = reason, "memory of a shared GPU not measured");
        }
    }
}
