//! Reconciliation of published with desired slices: makes plans from the cache, and executes them.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::api::resource::v1::ResourceSlice;
use tokio::{sync::watch, time::Instant};
use windlass_config::DriverName;
use windlass_host::causes;

use super::{
    DesiredSlices, PublishState, PublishedPool, SliceContent,
    cache::{SliceCache, name},
    layout::Layout,
    observations::Observations,
    plan::{DesiredPool, Owner, PoolPlan},
    repair_backoff::RepairBackoff,
    write::{Outcome, SliceApi},
};
use crate::{Client, ClusterError, client::Connection};

/// Makes the published slices equal the desired ones, and reports the state.
pub(super) struct SliceReconciler {
    owner: Owner,
    observations: Observations,
    repairs: RepairBackoff,
    /// Desired slices of the last complete publication.
    published: Option<DesiredSlices>,
    state: watch::Sender<Arc<PublishState>>,
}

/// Next step after a reconciliation.
pub(super) enum NextStep {
    /// Nothing to do: all desired slices are published.
    Done,
    /// Another writer changes the slices repeatedly: try again at this time.
    Wait(Instant),
    /// The cache is outdated: list again after this pause.
    ListAgain(Duration),
}

/// Result of executing plans.
enum Execution {
    Done,
    /// Another writer changed a slice.
    Conflict,
    /// The API server refused a slice. The observations have the reason.
    Refused,
}

type Plans = BTreeMap<String, PoolPlan>;

// === impl SliceReconciler ===

impl SliceReconciler {
    pub(super) fn new(
        client: &Client,
        driver: &DriverName,
        state: watch::Sender<Arc<PublishState>>,
    ) -> Self {
        Self {
            owner: Owner { driver: driver.to_string(), node: client.node().to_owned() },
            observations: Observations::default(),
            repairs: RepairBackoff::new(client.timeouts()),
            published: None,
            state,
        }
    }

    /// Drops all observations of the API server: a new connection may reach another API server.
    pub(super) fn reset_observations(&mut self) {
        self.observations = Observations::default();
    }

    /// Determines the layout of counters from the API server's version, once, if a slice has counters.
    pub(super) async fn find_layout(
        &mut self,
        desired: Option<&DesiredSlices>,
        connection: &Connection,
    ) -> Result<(), ClusterError> {
        let slices = desired.into_iter().flat_map(|desired| desired.pools.values()).flatten();
        let has_counters = slices.into_iter().any(|slice| !slice.shared_counters.is_empty());
        if !has_counters || self.observations.layout.is_some() {
            return Ok(());
        }
        let context = || "cannot read the API server's version".to_owned();
        let version = connection.call(context, connection.kube.apiserver_version()).await;
        self.observations.layout = Some(match version {
            // A server that does not show its version counts as new.
            Err(error) if matches!(error.code(), Some(403 | 404)) => Layout::Separate,
            version => Layout::of(&version?),
        });
        Ok(())
    }

    /// Reports a failed connection or request.
    pub(super) fn report_failure(&self, error: &ClusterError) {
        let error = Some(causes(error));
        self.state.send_modify(|state| {
            let state = Arc::make_mut(state);
            (state.error, state.error_count) = (error, state.error_count + 1);
        });
    }

    /// Publishes the desired slices. Returns the time of the next attempt if other writers change them repeatedly.
    pub(super) async fn reconcile(
        &mut self,
        desired: Option<&DesiredSlices>,
        cache: &mut SliceCache<'_>,
    ) -> Result<NextStep, ClusterError> {
        let no_slices = DesiredSlices::default();
        let desired = desired.unwrap_or(&no_slices);
        let mut plans = self.plans(desired, cache);
        if !plans.is_empty() && self.published.as_ref() == Some(desired) {
            if let Err(next) = self.repairs.try_repair() {
                return Ok(NextStep::Wait(next));
            }
            tracing::info!(
                pools = plans.len(),
                "another client changed the published slices: restored"
            );
        }
        while !plans.is_empty() {
            let revision = self.observations.revision();
            let execution = self.execute(plans, desired, cache).await?;
            plans = self.plans(desired, cache);
            // Each refusal and each dropped field changes the next plan, once.
            let has_observed = self.observations.revision() > revision;
            if matches!(execution, Execution::Conflict) || !(plans.is_empty() || has_observed) {
                return Ok(NextStep::ListAgain(self.repairs.next_delay()));
            }
        }
        self.observations.prune(desired);
        self.report(desired, &cache.slices);
        self.published = Some(desired.clone());
        Ok(NextStep::Done)
    }

    /// Plans for all pools with differences.
    fn plans(&self, desired: &DesiredSlices, cache: &SliceCache<'_>) -> Plans {
        let desired = self.observations.apply(desired);
        let mut published = BTreeMap::<&str, Vec<&ResourceSlice>>::new();
        for pool in desired.pools.keys() {
            published.entry(pool).or_default();
        }
        for slice in cache.slices.values() {
            published.entry(&slice.spec.pool.name).or_default().push(slice);
        }
        published.retain(|pool, _| {
            !desired.unknown_pools.contains(*pool) || desired.pools.contains_key(*pool)
        });
        let mut plans = Plans::new();
        for (pool, published) in published {
            let slices = desired.pools.get(pool).map(Vec::as_slice).unwrap_or_default();
            let is_up_to_date = |index: usize, slice: &ResourceSlice| {
                self.observations.is_published((pool, index), &slices[index], slice)
            };
            let desired = DesiredPool { name: pool, slices };
            let plan = PoolPlan::new(&self.owner, desired, &published, is_up_to_date);
            if !plan.is_empty() {
                plans.insert(pool.to_owned(), plan);
            }
        }
        plans
    }

    /// Executes plans until a request is refused or conflicts with another writer.
    async fn execute(
        &mut self,
        plans: Plans,
        desired: &DesiredSlices,
        cache: &mut SliceCache<'_>,
    ) -> Result<Execution, ClusterError> {
        let api = SliceApi { api: cache.api.clone(), connection: cache.connection };
        for (pool, plan) in plans {
            let desired = desired.pools.get(&pool).map(Vec::as_slice).unwrap_or_default();
            let previous = complete_pool(&pool, &cache.slices);
            for slice in &plan.delete {
                match api.delete(slice).await? {
                    Outcome::Done(()) => drop(cache.slices.remove(&name(slice))),
                    Outcome::Conflict | Outcome::Invalid(_) => return Ok(Execution::Conflict),
                }
            }
            for (index, slice) in api.with_owner(plan, &self.owner.node).await? {
                let sent = SliceContent::of(&slice);
                match api.write(&slice).await? {
                    Outcome::Done(stored) => {
                        self.observations.record_stored((&pool, index), &sent, &stored);
                        cache.record_write(stored);
                    }
                    Outcome::Conflict => return Ok(Execution::Conflict),
                    Outcome::Invalid(status) => {
                        self.state.send_modify(|state| Arc::make_mut(state).error_count += 1);
                        self.observations.record_refusal(&pool, desired, &previous, &sent, &status);
                        return Ok(Execution::Refused);
                    }
                }
            }
        }
        Ok(Execution::Done)
    }

    fn report(&self, desired: &DesiredSlices, published: &BTreeMap<String, ResourceSlice>) {
        let mut pools = BTreeMap::<String, PublishedPool>::new();
        for ResourceSlice { spec, .. } in published.values() {
            let pool = pools.entry(spec.pool.name.clone()).or_default();
            pool.generation = pool.generation.max(spec.pool.generation);
            pool.slices += 1;
            pool.devices += spec.devices.as_ref().map_or(0, Vec::len);
        }
        let omitted = self.observations.apply(desired).omitted;
        let (error, dropped_fields) =
            (self.observations.refusals(), self.observations.dropped_fields().clone());
        self.state.send_if_modified(|state| {
            let errors = state.error_count;
            let current =
                PublishState { pools, error, error_count: errors, omitted, dropped_fields };
            if **state == current {
                return false;
            }
            log_changes(state, &current);
            *state = Arc::new(current);
            true
        });
    }
}

/// Content of a complete published pool, in order. Empty for an incomplete pool, which schedulers ignore.
fn complete_pool(pool: &str, published: &BTreeMap<String, ResourceSlice>) -> Vec<SliceContent> {
    let slices_of_pool = || published.values().filter(|slice| slice.spec.pool.name == pool);
    let newest = slices_of_pool().map(|slice| slice.spec.pool.generation).max();
    let newest = slices_of_pool().filter(|slice| Some(slice.spec.pool.generation) == newest);
    let slices: Vec<_> = newest.collect();
    let is_complete = slices
        .iter()
        .all(|slice| usize::try_from(slice.spec.pool.resource_slice_count) == Ok(slices.len()));
    if is_complete { slices.into_iter().map(SliceContent::of).collect() } else { Vec::new() }
}

fn log_changes(previous: &PublishState, current: &PublishState) {
    for (pool, PublishedPool { generation, slices, devices }) in &current.pools {
        if previous.pools.get(pool) != current.pools.get(pool) {
            tracing::info!(pool, generation, slices, devices, "resource slices published");
        }
    }
    for pool in previous.pools.keys().filter(|pool| !current.pools.contains_key(*pool)) {
        tracing::info!(pool, "resource slices removed");
    }
    for device in current.omitted.iter().filter(|device| !previous.omitted.contains(device)) {
        let super::OmittedDevice { pool, device, reason } = device;
        tracing::warn!(pool, device, reason, "device not published in ResourceSlice");
    }
    for dropped_fields in current.dropped_fields.difference(&previous.dropped_fields) {
        let (fields, gate) = (dropped_fields.fields(), dropped_fields.gate().unwrap_or("unknown"));
        tracing::warn!(
            fields,
            gate,
            "API server dropped fields from ResourceSlice: feature gate disabled"
        );
    }
    if let Some(error) =
        current.error.as_ref().filter(|error| previous.error.as_ref() != Some(error))
    {
        tracing::warn!(error, "ResourceSlices not published: refused by the API server");
    }
}
