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
    learned::Learned,
    plan::{DesiredPool, Owner, PoolPlan},
    repair_backoff::RepairBackoff,
    write::{Outcome, SliceApi},
};
use crate::{Client, ClusterError, client::Connection};

/// Makes the published slices equal the desired ones, and reports the state.
pub(super) struct SliceReconciler {
    owner: Owner,
    learned: Learned,
    repairs: RepairBackoff,
    /// Desired slices of the last complete publication.
    published: Option<DesiredSlices>,
    outcome: watch::Sender<Arc<PublishState>>,
}

/// Next step after a reconciliation.
pub(super) enum Next {
    /// Nothing to do: all desired slices are published.
    Done,
    /// Another writer keeps changing the slices: try again at this time.
    Wait(Instant),
    /// The cache is outdated: list again after this pause.
    ListAgain(Duration),
}

/// Result of executing plans.
enum Execution {
    Done,
    /// Another writer changed a slice.
    Overtaken,
    /// The API server refused a slice, and its reason is recorded.
    Refused,
}

type Plans = BTreeMap<String, PoolPlan>;

// === impl SliceReconciler ===

impl SliceReconciler {
    pub(super) fn new(
        client: &Client,
        driver: &DriverName,
        outcome: watch::Sender<Arc<PublishState>>,
    ) -> Self {
        Self {
            owner: Owner { driver: driver.to_string(), node: client.node().to_owned() },
            learned: Learned::default(),
            repairs: RepairBackoff::new(client.limits()),
            published: None,
            outcome,
        }
    }

    /// Forgets what is known of the API server: a new connection may reach another one.
    pub(super) fn begin(&mut self) {
        self.learned = Learned::default();
    }

    /// Finds the API server's layout of counters by its version, once, if any slice has counters.
    pub(super) async fn find_layout(
        &mut self,
        desired: Option<&DesiredSlices>,
        connection: &Connection,
    ) -> Result<(), ClusterError> {
        let slices = desired.into_iter().flat_map(|desired| desired.pools.values()).flatten();
        let matters = slices.into_iter().any(|slice| !slice.shared_counters.is_empty());
        if !matters || self.learned.layout.is_some() {
            return Ok(());
        }
        let context = || "cannot read the API server's version".to_owned();
        let version = connection.call(context, connection.kube.apiserver_version()).await;
        self.learned.layout = Some(match version {
            // A server that hides its version counts as new.
            Err(error) if matches!(error.code(), Some(403 | 404)) => Layout::Apart,
            version => Layout::of(&version?),
        });
        Ok(())
    }

    /// Reports a failed connection or request.
    pub(super) fn failed(&self, error: &ClusterError) {
        let error = Some(causes(error));
        self.outcome.send_modify(|state| {
            let state = Arc::make_mut(state);
            (state.error, state.errors) = (error, state.errors + 1);
        });
    }

    /// Publishes the desired slices. Returns the time of the next attempt if other writers keep changing them.
    pub(super) async fn reconcile(
        &mut self,
        desired: Option<&DesiredSlices>,
        cache: &mut SliceCache<'_>,
    ) -> Result<Next, ClusterError> {
        let nothing = DesiredSlices::default();
        let desired = desired.unwrap_or(&nothing);
        let mut plans = self.plans(desired, cache);
        if !plans.is_empty() && self.published.as_ref() == Some(desired) {
            if let Err(next) = self.repairs.try_now() {
                return Ok(Next::Wait(next));
            }
            tracing::info!(
                pools = plans.len(),
                "another client changed the published slices: restored"
            );
        }
        while !plans.is_empty() {
            let known = self.learned.count();
            let execution = self.execute(plans, desired, cache).await?;
            plans = self.plans(desired, cache);
            // Each refusal and each dropped field changes the next plan, once.
            let has_learned = self.learned.count() > known;
            if matches!(execution, Execution::Overtaken) || !(plans.is_empty() || has_learned) {
                return Ok(Next::ListAgain(self.repairs.pause()));
            }
        }
        self.learned.published(desired);
        self.report(desired, &cache.slices);
        self.published = Some(desired.clone());
        Ok(Next::Done)
    }

    /// Plans for all pools with differences.
    fn plans(&self, desired: &DesiredSlices, cache: &SliceCache<'_>) -> Plans {
        let desired = self.learned.apply(desired);
        let mut known = BTreeMap::<&str, Vec<&ResourceSlice>>::new();
        for pool in desired.pools.keys() {
            known.entry(pool).or_default();
        }
        for slice in cache.slices.values() {
            known.entry(&slice.spec.pool.name).or_default().push(slice);
        }
        known.retain(|pool, _| {
            !desired.undecided.contains(*pool) || desired.pools.contains_key(*pool)
        });
        let mut plans = Plans::new();
        for (pool, known) in known {
            let slices = desired.pools.get(pool).map(Vec::as_slice).unwrap_or_default();
            let is_kept = |at: usize, slice: &ResourceSlice| {
                self.learned.keeps((pool, at), &slices[at], slice)
            };
            let desired = DesiredPool { name: pool, slices };
            let plan = PoolPlan::new(&self.owner, desired, &known, is_kept);
            if !plan.is_empty() {
                plans.insert(pool.to_owned(), plan);
            }
        }
        plans
    }

    /// Executes plans, until a request is refused or overtaken.
    async fn execute(
        &mut self,
        plans: Plans,
        desired: &DesiredSlices,
        cache: &mut SliceCache<'_>,
    ) -> Result<Execution, ClusterError> {
        let api = SliceApi { api: cache.api.clone(), connection: cache.connection };
        for (pool, plan) in plans {
            let desired = desired.pools.get(&pool).map(Vec::as_slice).unwrap_or_default();
            let before = complete_pool(&pool, &cache.slices);
            for slice in &plan.delete {
                match api.delete(slice).await? {
                    Outcome::Done(()) => drop(cache.slices.remove(&name(slice))),
                    Outcome::Overtaken | Outcome::Invalid(_) => return Ok(Execution::Overtaken),
                }
            }
            for (at, slice) in api.with_owner(plan, &self.owner.node).await? {
                let sent = SliceContent::of(&slice);
                match api.write(&slice).await? {
                    Outcome::Done(stored) => {
                        self.learned.stored((&pool, at), &sent, &stored);
                        cache.record_write(stored);
                    }
                    Outcome::Overtaken => return Ok(Execution::Overtaken),
                    Outcome::Invalid(status) => {
                        self.outcome.send_modify(|state| Arc::make_mut(state).errors += 1);
                        self.learned.refused(&pool, desired, &before, &sent, &status);
                        return Ok(Execution::Refused);
                    }
                }
            }
        }
        Ok(Execution::Done)
    }

    fn report(&self, desired: &DesiredSlices, known: &BTreeMap<String, ResourceSlice>) {
        let mut pools = BTreeMap::<String, PublishedPool>::new();
        for ResourceSlice { spec, .. } in known.values() {
            let pool = pools.entry(spec.pool.name.clone()).or_default();
            pool.generation = pool.generation.max(spec.pool.generation);
            pool.slices += 1;
            pool.devices += spec.devices.as_ref().map_or(0, Vec::len);
        }
        let left_out = self.learned.apply(desired).left_out;
        let (error, dropped_fields) =
            (self.learned.refusals(), self.learned.dropped_fields().clone());
        self.outcome.send_if_modified(|state| {
            let errors = state.errors;
            let now = PublishState { pools, error, errors, left_out, dropped_fields };
            if **state == now {
                return false;
            }
            log_changes(state, &now);
            *state = Arc::new(now);
            true
        });
    }
}

/// Content of a complete published pool, in order. Empty for an incomplete pool, which schedulers ignore.
fn complete_pool(pool: &str, known: &BTreeMap<String, ResourceSlice>) -> Vec<SliceContent> {
    let all = || known.values().filter(|slice| slice.spec.pool.name == pool);
    let newest = all().map(|slice| slice.spec.pool.generation).max();
    let newest = all().filter(|slice| Some(slice.spec.pool.generation) == newest);
    let slices: Vec<_> = newest.collect();
    let is_complete = slices
        .iter()
        .all(|slice| usize::try_from(slice.spec.pool.resource_slice_count) == Ok(slices.len()));
    if is_complete { slices.into_iter().map(SliceContent::of).collect() } else { Vec::new() }
}

fn log_changes(before: &PublishState, now: &PublishState) {
    for (pool, PublishedPool { generation, slices, devices }) in &now.pools {
        if before.pools.get(pool) != now.pools.get(pool) {
            tracing::info!(pool, generation, slices, devices, "resource slices published");
        }
    }
    for pool in before.pools.keys().filter(|pool| !now.pools.contains_key(*pool)) {
        tracing::info!(pool, "resource slices removed");
    }
    for left_out in now.left_out.iter().filter(|it| !before.left_out.contains(it)) {
        let super::LeftOut { pool, device, reason } = left_out;
        tracing::warn!(pool, device, reason, "device not published in ResourceSlice");
    }
    for dropped in now.dropped_fields.difference(&before.dropped_fields) {
        let (fields, gate) = (dropped.fields(), dropped.gate().unwrap_or("unknown"));
        tracing::warn!(
            fields,
            gate,
            "API server dropped fields from ResourceSlice: feature gate disabled"
        );
    }
    if let Some(error) = now.error.as_ref().filter(|error| before.error.as_ref() != Some(error)) {
        tracing::warn!(error, "ResourceSlices not published: refused by the API server");
    }
}
