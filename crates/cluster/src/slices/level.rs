//! Makes what is published be what is wanted, once: plans are made from what is seen, and carried out.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::core::Status;
use tokio::{sync::watch, time::Instant};
use windlass_config::DriverName;
use windlass_host::causes;

use super::{
    Content, PublishState, PublishedPool, Wanted,
    layout::Layout,
    lessons::{Lessons, Place},
    patience::Patience,
    plan::{Owner, PoolPlan, WantedPool},
    sight::{Sight, name},
    write::{Answer, Office},
};
use crate::{Client, ClusterError, client::Connection};

/// Makes what is published be what is wanted, and tells how it is.
pub(super) struct Leveller {
    owner: Owner,
    lessons: Lessons,
    patience: Patience,
    /// What was wanted when it was level last.
    levelled: Option<Wanted>,
    outcome: watch::Sender<Arc<PublishState>>,
}

/// What is to be done next.
pub(super) enum Step {
    /// Nothing.
    Level,
    /// Others undo what is done here: again, but not before this.
    Wait(Instant),
    /// What was seen is not what is there: to be listed again, after a pause.
    LookAgain(Duration),
}

/// What came of a plan.
enum Carried {
    /// It is done.
    Out,
    /// What is there is not what was seen.
    Overtaken,
    /// Something was refused, and why is known now.
    Refused,
}

/// HTTP's "forbidden", and its "not found".
const FORBIDDEN: u16 = 403;
const NOT_FOUND: u16 = 404;

/// Plans by pool.
type Plans = BTreeMap<String, PoolPlan>;

// === impl Leveller ===

impl Leveller {
    pub(super) fn new(
        client: &Client,
        driver: &DriverName,
        outcome: watch::Sender<Arc<PublishState>>,
    ) -> Self {
        let (driver, node) = (driver.to_string(), client.node().to_owned());
        let (lessons, patience) = (Lessons::default(), Patience::new(client.limits()));
        Self { owner: Owner { driver, node }, lessons, patience, levelled: None, outcome }
    }

    /// A new connection, and perhaps another API server.
    pub(super) fn begin(&mut self) {
        self.lessons = Lessons::default();
    }

    /// Asks which layout the API server takes, once, if anything has counters.
    pub(super) async fn find_layout(
        &mut self,
        wanted: Option<&Wanted>,
        connection: &Connection,
    ) -> Result<(), ClusterError> {
        let slices = wanted.into_iter().flat_map(|wanted| wanted.pools.values()).flatten();
        let matters = slices.into_iter().any(|slice| !slice.shared_counters.is_empty());
        if !matters || self.lessons.layout.is_some() {
            return Ok(());
        }
        let doing = || "cannot ask for the API server's version".to_owned();
        let is_no = |status: &Status| matches!(status.code, FORBIDDEN | NOT_FOUND);
        let version = connection.ask(doing, connection.kube.apiserver_version()).await;
        self.lessons.layout = Some(match version {
            // One that does not tell is taken for a new one.
            Err(error) if error.status().is_some_and(is_no) => Layout::Apart,
            version => Layout::of(&version?),
        });
        Ok(())
    }

    /// Nothing could be done.
    pub(super) fn failed(&self, error: &ClusterError) {
        let error = Some(causes(error));
        self.outcome.send_modify(|state| {
            let state = Arc::make_mut(state);
            (state.error, state.errors) = (error, state.errors + 1);
        });
    }

    /// Makes it level, if others do not undo it again and again.
    pub(super) async fn level(
        &mut self,
        wanted: Option<&Wanted>,
        sight: &mut Sight<'_>,
    ) -> Result<Step, ClusterError> {
        let nothing = Wanted::default();
        let wish = wanted.unwrap_or(&nothing);
        let mut plans = self.plans(wish, sight);
        if !plans.is_empty() && self.levelled.as_ref() == Some(wish) {
            if let Err(next) = self.patience.try_now() {
                return Ok(Step::Wait(next));
            }
            tracing::info!(pools = plans.len(), "others changed the published slices: put back");
        }
        while !plans.is_empty() {
            let known = self.lessons.count();
            let carried = self.carry_out(plans, wish, sight).await?;
            plans = self.plans(wish, sight);
            // A refusal, or a field that is not kept, changes what can be wanted: each once.
            let is_wiser = self.lessons.count() > known;
            if matches!(carried, Carried::Overtaken) || !(plans.is_empty() || is_wiser) {
                return Ok(Step::LookAgain(self.patience.pause()));
            }
        }
        self.lessons.settled(wish);
        self.tell(wish, &sight.known);
        self.levelled = Some(wish.clone());
        Ok(Step::Level)
    }

    /// What is to be done for each pool; nothing for those that are as they should be.
    fn plans(&self, wish: &Wanted, sight: &Sight<'_>) -> Plans {
        let wanted = self.lessons.apply(wish);
        let mut known = BTreeMap::<&str, Vec<&ResourceSlice>>::new();
        for pool in wanted.pools.keys() {
            known.entry(pool).or_default();
        }
        for slice in sight.known.values() {
            known.entry(&slice.spec.pool.name).or_default().push(slice);
        }
        known.retain(|pool, _| {
            !wanted.undecided.contains(*pool) || wanted.pools.contains_key(*pool)
        });
        let plan = |(pool, known): (&str, Vec<&ResourceSlice>)| {
            let slices = wanted.pools.get(pool).map(Vec::as_slice).unwrap_or_default();
            let is_kept = |at: usize, slice: &ResourceSlice| {
                self.lessons.keeps((pool, at), &slices[at], slice)
            };
            let wanted = WantedPool { name: pool, slices };
            (pool.to_owned(), PoolPlan::new(&self.owner, wanted, &known, is_kept))
        };
        known.into_iter().map(plan).filter(|(_, plan)| !plan.is_empty()).collect()
    }

    /// Does what is to be done, until something is refused or overtaken.
    async fn carry_out(
        &mut self,
        plans: Plans,
        wish: &Wanted,
        sight: &mut Sight<'_>,
    ) -> Result<Carried, ClusterError> {
        let office = Office { api: sight.api.clone(), connection: sight.connection };
        for (pool, plan) in plans {
            let wanted = wish.pools.get(&pool).map(Vec::as_slice).unwrap_or_default();
            let before = whole(&pool, &sight.known);
            for slice in &plan.delete {
                match office.delete(slice).await? {
                    Answer::Done(()) => drop(sight.known.remove(&name(slice))),
                    Answer::Overtaken | Answer::Invalid(_) => return Ok(Carried::Overtaken),
                }
            }
            for (at, slice) in office.owned(plan, &self.owner.node).await? {
                let answer = office.write(&slice).await?;
                match self.learn((&pool, at), (wanted, &before), &slice, answer) {
                    Ok(stored) => sight.wrote(*stored),
                    Err(carried) => return Ok(carried),
                }
            }
        }
        Ok(Carried::Out)
    }

    /// Takes what an answer teaches, and gives what is stored.
    fn learn(
        &mut self,
        place: Place<'_>,
        (wanted, before): (&[Content], &[Content]),
        sent: &ResourceSlice,
        answer: Answer<ResourceSlice>,
    ) -> Result<Box<ResourceSlice>, Carried> {
        let sent = Content::of(sent);
        match answer {
            Answer::Done(stored) => {
                self.lessons.stored(place, &sent, &stored);
                Ok(Box::new(stored))
            }
            Answer::Overtaken => Err(Carried::Overtaken),
            Answer::Invalid(status) => {
                self.outcome.send_modify(|state| Arc::make_mut(state).errors += 1);
                self.lessons.refused((place.0, wanted, before), &sent, &status);
                Err(Carried::Refused)
            }
        }
    }

    /// Says what is published now.
    fn tell(&self, wish: &Wanted, known: &BTreeMap<String, ResourceSlice>) {
        let mut pools = BTreeMap::<String, PublishedPool>::new();
        for ResourceSlice { spec, .. } in known.values() {
            let pool = pools.entry(spec.pool.name.clone()).or_default();
            pool.generation = pool.generation.max(spec.pool.generation);
            pool.slices += 1;
            pool.devices += spec.devices.as_ref().map_or(0, Vec::len);
        }
        let left_out = self.lessons.apply(wish).left_out;
        let (error, lost) = (self.lessons.refusals(), self.lessons.lost().clone());
        self.outcome.send_if_modified(|state| {
            let errors = state.errors;
            let now = PublishState { pools, error, errors, left_out, lost };
            if **state == now {
                return false;
            }
            say(state, &now);
            *state = Arc::new(now);
            true
        });
    }
}

/// What is published of a pool, in order; nothing while it is half-written, and no scheduler looks at it.
fn whole(pool: &str, known: &BTreeMap<String, ResourceSlice>) -> Vec<Content> {
    let all = || known.values().filter(|slice| slice.spec.pool.name == pool);
    let newest = all().map(|slice| slice.spec.pool.generation).max();
    let newest = all().filter(|slice| Some(slice.spec.pool.generation) == newest);
    let slices: Vec<_> = newest.collect();
    let is_whole = |slice: &&ResourceSlice| {
        usize::try_from(slice.spec.pool.resource_slice_count) == Ok(slices.len())
    };
    let is_whole = slices.iter().all(is_whole);
    if is_whole { slices.into_iter().map(Content::of).collect() } else { Vec::new() }
}

/// Says what is new.
fn say(before: &PublishState, now: &PublishState) {
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
        tracing::warn!(pool, device, reason, "a device is not published");
    }
    for loss in now.lost.difference(&before.lost) {
        let (fields, gate) = (loss.fields(), loss.gate().unwrap_or("unknown"));
        tracing::warn!(fields, gate, "the API server drops what its feature gate is off for");
    }
    if let Some(error) = now.error.as_ref().filter(|error| before.error.as_ref() != Some(error)) {
        tracing::warn!(error, "what is wanted is not published");
    }
}
