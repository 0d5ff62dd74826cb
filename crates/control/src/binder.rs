//! Binding of a pod: the devices are chosen, and one write says node and devices.
//!
//! The Binding carries the placement in its annotations. The API server merges them with the node's name in one
//! update, and refuses it for a pod of another identity, a deleted one and a bound one.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::{
    api::core::v1::{Binding, ObjectReference, Pod},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Api, api::PostParams, core::Status};
use tokio::{
    sync::{Semaphore, oneshot},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use windlass_core::annotation::PodPlacement;
use windlass_host::{clock::Clock, shared::Shared};

use crate::{
    access::ANSWER_LIMIT,
    facts::{GpuWish, PodFacts, SharedBy},
    fence::{Fence, FenceError},
    gpushare,
    index::{GangWait, Index, Placed, Refusal, Turn},
    metrics::Metrics,
    wire::BindArgs,
};

/// Binds pods.
pub(crate) struct Binder {
    client: kube::Client,
    index: Arc<Shared<Index>>,
    fence: Arc<Fence>,
    clock: Clock,
    metrics: Arc<Metrics>,
    limits: WaitLimits,
    writes: Semaphore,
    tasks: Shared<JoinSet<()>>,
}

/// Limits of the wait for the other members of a gang.
pub(crate) struct WaitLimits {
    /// Time in which all have to arrive for their bind.
    pub(crate) gang_wait: Duration,
    /// Ends every wait.
    pub(crate) stop: CancellationToken,
}

/// A bind that failed: before its write, or while it was written.
enum Failed {
    Before(BindError),
    Writing(BindError),
}

/// The end of a write without a good answer.
enum End {
    Bound,
    Unbound,
    Unknown,
}

/// Time after which the API server has given up a request that it still held (`--request-timeout`, a minute).
const WRITE_LIMIT: Duration = Duration::from_secs(65);
/// Binds of gangs that are written at a time.
const MAX_WRITES: usize = 32;
/// Time between looks after the Lease while a gang waits: below the time for which a bind needs it.
const KEEP_INTERVAL: Duration = Duration::from_secs(4);
/// Pause before a pod of an unknown end is read again.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Reason why a pod is not bound. kube-scheduler tries again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BindError {
    /// The view lacks objects.
    #[error("not ready: the cluster's objects have not been read yet")]
    NotReady,
    /// The pod is gone, or another has its name.
    #[error("pod {0} is gone")]
    Gone(String),
    /// The node cannot serve the pod any more.
    #[error("node {node} cannot serve the pod any more")]
    Refused {
        /// The node.
        node: String,
        /// The reason.
        source: Refusal,
    },
    /// Other members of the pod's gang did not arrive.
    #[error(
        "gang {gang} was not complete within {limit:?}: a pod is missing, or fits no node that kube-scheduler offers"
    )]
    TimedOut {
        /// Name of the gang.
        gang: String,
        /// Time in which all had to arrive.
        limit: Duration,
    },
    /// The pod's gang was given up while it waited.
    #[error(
        "gang {0} was given up, because not all of its pods arrived or this replica binds no more: all are tried again"
    )]
    GivenUp(String),
    /// Another replica binds.
    #[error(transparent)]
    Fenced(#[from] FenceError),
    /// The API server refused.
    #[error("the API server refused")]
    Kube(#[source] Box<kube::Error>),
    /// The extender ends.
    #[error("the extender ends: try again")]
    Ending,
    /// The API server did not answer.
    #[error("the API server did not answer within {ANSWER_LIMIT:?}")]
    Late,
}

// === impl BindError ===

impl BindError {
    /// The API server has refused: the write has no effect. Its own failures say nothing about it.
    fn is_refusal(&self) -> bool {
        let Self::Kube(error) = self else { return false };
        matches!(&**error, kube::Error::Api(status) if (400..500).contains(&status.code))
    }
}

// === impl Binder ===

impl Binder {
    pub(crate) fn new(
        client: kube::Client,
        index: Arc<Shared<Index>>,
        fence: Arc<Fence>,
        clock: Clock,
        metrics: Arc<Metrics>,
        limits: WaitLimits,
    ) -> Self {
        let (writes, tasks) = (Semaphore::new(MAX_WRITES), Shared::default());
        Self { client, index, fence, clock, metrics, limits, writes, tasks }
    }

    /// Binds the pod, in a task of its own: a client that goes away leaves no bind half done.
    pub(crate) async fn bind(self: &Arc<Self>, args: BindArgs) -> Result<(), BindError> {
        let (tell, told) = oneshot::channel();
        let binder = self.clone();
        self.tasks.step(|tasks| {
            while tasks.try_join_next().is_some() {}
            tasks.spawn(async move { binder.bind_and_settle(&args, tell).await });
        });
        told.await.unwrap_or(Err(BindError::Ending))
    }

    /// True once no bind is under way. None begins any more.
    pub(crate) async fn drain(&self, limit: Duration) -> bool {
        let mut tasks = self.tasks.step(std::mem::take);
        timeout(limit, async { while tasks.join_next().await.is_some() {} }).await.is_ok()
    }

    /// Binds the pod and tells the outcome. While it is unknown, the pod keeps its devices, and its object is read.
    async fn bind_and_settle(
        &self,
        args: &BindArgs,
        mut tell: oneshot::Sender<Result<(), BindError>>,
    ) {
        let mut number = 0;
        let failure = match self.place_and_write(args, &mut tell, &mut number).await {
            Ok(()) => {
                let _ = tell.send(Ok(()));
                return;
            }
            Err(Failed::Before(error)) => {
                let _ = tell.send(Err(error));
                return;
            }
            Err(Failed::Writing(error)) => error,
        };
        let failed = Instant::now();
        let is_refused = failure.is_refusal();
        let mut end = self.look(args, number, is_refused).await;
        let _ = tell.send(match end {
            End::Bound => Ok(()),
            End::Unbound | End::Unknown => Err(failure),
        });
        while matches!(end, End::Unknown) {
            sleep(LOOK_AGAIN).await;
            let is_over = failed.elapsed() > WRITE_LIMIT;
            end = self.look(args, number, is_over).await;
        }
    }

    async fn place_and_write(
        &self,
        args: &BindArgs,
        tell: &mut oneshot::Sender<Result<(), BindError>>,
        decided: &mut u64,
    ) -> Result<(), Failed> {
        if !self.index.step(|index| index.is_synced()) {
            return Err(Failed::Before(BindError::NotReady));
        }
        let term = self.fence.hold().await.map_err(|error| Failed::Before(error.into()))?;
        let known = self.index.step(|index| index.pod(&args.pod_uid).cloned());
        let pod = match known {
            Some(pod) => pod,
            // The scheduler's watch may be ahead of ours.
            None => self.read(args).await.map_err(Failed::Before)?,
        };
        let arrived = self.index.step(|index| index.arrive(&pod, &args.node));
        if matches!(arrived, Err(Refusal::GangLostNode(_))) {
            self.metrics.gathered(false);
        }
        let refused = |source| BindError::Refused { node: args.node.clone(), source };
        let (placed, turn) = arrived.map_err(|refusal| Failed::Before(refused(refusal)))?;
        let number = placed.number;
        *decided = number;
        let is_of_a_gang = !matches!(turn, Turn::Alone);
        match turn {
            Turn::Alone => {}
            Turn::Last => self.metrics.gathered(true),
            Turn::Waits(wait) => {
                let waited = self.wait_for_gang((&args.pod_uid, number), term, wait, tell).await;
                waited.map_err(Failed::Before)?;
            }
        }
        // Others need not wait for the many binds of a gang.
        let _permit = if is_of_a_gang { self.writes.acquire().await.ok() } else { None };
        if let Err(error) = self.fence.keep(term).await {
            self.index.step(|index| index.forget(&args.pod_uid, number));
            return Err(Failed::Before(error.into()));
        }
        self.index.step(|index| index.begin_write(&args.pod_uid, number));
        self.write(args, self.annotations(&pod, &placed)).await.map_err(Failed::Writing)?;
        let devices: Vec<_> = placed.placement.devices.iter().map(|it| it.id.as_str()).collect();
        let devices = devices.join(",");
        tracing::info!(pod = pod.title(), node = args.node, devices, "pod bound");
        Ok(())
    }

    /// Waits for the other members of the pod's gang, as long as somebody waits for the answer.
    async fn wait_for_gang(
        &self,
        (uid, number): (&str, u64),
        term: u64,
        mut wait: GangWait,
        tell: &mut oneshot::Sender<Result<(), BindError>>,
    ) -> Result<(), BindError> {
        let WaitLimits { gang_wait, stop } = &self.limits;
        // The reserved places are sure as long as nobody else may bind.
        let keep = async {
            while self.fence.keep(term).await.is_ok() {
                sleep(KEEP_INTERVAL).await;
            }
        };
        let mut is_late = false;
        tokio::select! {
            arrived = timeout(*gang_wait, wait.all_arrived()) => is_late = arrived.is_err(),
            () = tell.closed() => {}
            () = keep => {}
            () = stop.cancelled() => {}
        }
        let (gang, now) = (wait.gang().to_owned(), Instant::now());
        let (is_whole, is_given_up) = self.index.step(|index| {
            // Another bind of this pod may have taken its turn meanwhile.
            if wait.is_whole() {
                return (index.is_current(uid, number), false);
            }
            if tell.is_closed() {
                index.depart(uid, number, &wait);
                return (false, false);
            }
            let is_given_up = index.give_up(&wait);
            if is_given_up && is_late {
                index.rest(&wait, *gang_wait / 2, now);
            }
            (false, is_given_up)
        });
        if is_whole {
            return Ok(());
        }
        if is_given_up {
            self.metrics.gathered(false);
            tracing::warn!(
                gang,
                is_late,
                "gang given up: not all of its pods came to be bound in time"
            );
        }
        Err(if is_late {
            BindError::TimedOut { gang, limit: *gang_wait }
        } else {
            BindError::GivenUp(gang)
        })
    }

    /// Reason why the pod is not placed yet: its gang was given up a while ago, and is in back-off.
    pub(crate) fn backoff_of(&self, pod: &PodFacts) -> Option<String> {
        let now = Instant::now();
        let left = self.index.step(|index| index.backoff_of(pod, now))?.as_secs() + 1;
        let gang = pod.gang.as_ref()?.as_ref().ok()?;
        Some(format!(
            "gang {} was not complete in time, and is tried again in {left} s: look at the events of all its pods",
            gang.name
        ))
    }

    /// Reads the pod after a failed write. One that is not bound is free of it only once the write can have no effect any
    /// more.
    async fn look(&self, args: &BindArgs, number: u64, is_over: bool) -> End {
        match self.read(args).await {
            Ok(pod) if pod.node.is_some() => {
                let is_ours = pod.node.as_ref() == Some(&args.node);
                self.index.step(|index| index.set_pod(pod));
                if is_ours { End::Bound } else { End::Unbound }
            }
            Ok(_) if is_over => {
                self.index.step(|index| index.end_write(&args.pod_uid, number));
                End::Unbound
            }
            Err(BindError::Gone(_)) => {
                self.index.step(|index| index.remove_pod(&args.pod_uid));
                End::Unbound
            }
            Ok(_) | Err(_) => End::Unknown,
        }
    }

    async fn read(&self, args: &BindArgs) -> Result<PodFacts, BindError> {
        let gone = || BindError::Gone(format!("{}/{}", args.pod_namespace, args.pod_name));
        let found = call(self.pods(args).get_opt(&args.pod_name)).await?;
        let pod = PodFacts::of(&found.ok_or_else(gone)?);
        let is_it = pod.uid == args.pod_uid && !pod.is_ended;
        if is_it { Ok(pod) } else { Err(gone()) }
    }

    async fn write(
        &self,
        args: &BindArgs,
        annotations: BTreeMap<String, String>,
    ) -> Result<(), BindError> {
        let binding = Binding {
            metadata: ObjectMeta {
                name: Some(args.pod_name.clone()),
                namespace: Some(args.pod_namespace.clone()),
                uid: Some(args.pod_uid.clone()),
                annotations: Some(annotations).filter(|all| !all.is_empty()),
                ..ObjectMeta::default()
            },
            target: ObjectReference {
                kind: Some("Node".to_owned()),
                name: Some(args.node.clone()),
                ..ObjectReference::default()
            },
        };
        let (pods, how) = (self.pods(args), PostParams::default());
        // The client waits by itself where the API server has too many requests.
        let posted =
            pods.create_subresource::<_, Status>("binding", &args.pod_name, &how, &binding);
        call(posted).await.map(drop)
    }

    fn annotations(&self, pod: &PodFacts, placed: &Placed) -> BTreeMap<String, String> {
        let mut annotations = BTreeMap::new();
        let Placed { placement, first, .. } = placed;
        if !placement.devices.is_empty() {
            annotations.insert(PodPlacement::ANNOTATION.to_owned(), placement.to_annotation());
        }
        if let (Ok(wish @ GpuWish::Share { by: SharedBy::Gpushare, .. }), Some((index, gpu))) =
            (&pod.wish.gpus, first)
        {
            annotations.extend(gpushare::annotations(*index, gpu, *wish, self.clock.now()));
        }
        annotations
    }

    fn pods(&self, args: &BindArgs) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &args.pod_namespace)
    }
}

async fn call<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, BindError> {
    match timeout(ANSWER_LIMIT, request).await {
        Ok(answer) => answer.map_err(|error| BindError::Kube(Box::new(error))),
        Err(_) => Err(BindError::Late),
    }
}
