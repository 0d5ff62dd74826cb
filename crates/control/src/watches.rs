//! Watches that keep the index up to date: nodes, pods, slices, claims, device classes.
//!
//! A watch begins with a list and continues from the list's resource version. After a failure it resumes with back-off,
//! with a new list if that version has expired. Until then the index keeps its last state.

use std::{collections::HashSet, fmt::Debug, pin::pin, sync::Arc, time::Duration};

use k8s_openapi::api::{
    core::v1::{Node, Pod},
    resource::v1::{DeviceClass, ResourceClaim, ResourceSlice},
};
use kube::{
    Api, Resource, ResourceExt as _,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event},
    },
};
use serde::de::DeserializeOwned;
use tokio::time::sleep;
use tokio_stream::StreamExt as _;
use windlass_host::{causes, shared::Shared};

use crate::{
    access,
    facts::{NodeFacts, PodFacts},
    index::Index,
};

/// A kind of object that the index watches.
trait WatchedKind:
    Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static
{
    /// Plural resource name, for logs.
    const KIND: &'static str;
    /// The part of an object that the index keeps.
    type Facts;

    fn facts(self) -> Self::Facts;
    /// Unique key within the kind.
    fn key(facts: &Self::Facts) -> String;
    fn set(facts: Self::Facts, index: &mut Index);
    fn remove(self, index: &mut Index);
    /// Removes all objects but those of these keys.
    fn retain(keys: &HashSet<String>, index: &mut Index);

    /// Begins a list, and abandons the earlier list if it has not ended. Returns the list's number if the kind numbers
    /// its lists.
    fn begin_list(_: Option<u64>, _: &mut Index) -> Option<u64> {
        None
    }

    /// Applies a complete list.
    fn set_all(objects: Vec<Self::Facts>, _: Option<u64>, index: &mut Index) {
        let keys = objects.iter().map(Self::key).collect();
        for facts in objects {
            Self::set(facts, index);
        }
        Self::retain(&keys, index);
    }
}

/// Lists pods on demand, independently of the watches.
pub(crate) struct Relister {
    client: kube::Client,
    index: Arc<Shared<Index>>,
}

/// Pause before the discovery request is repeated.
const DISCOVERY_RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Kinds whose first list is not complete.
type PendingLists = Shared<HashSet<&'static str>>;

/// Watches nodes and pods, and the objects of Dynamic Resource Allocation if the API server serves them. Never returns:
/// drop the future to stop.
pub(crate) async fn watch_all(client: kube::Client, index: Arc<Shared<Index>>) {
    let core_kinds = [Node::KIND, Pod::KIND];
    if serves_resource_api(&client).await {
        let claim_kinds = [ResourceSlice::KIND, ResourceClaim::KIND, DeviceClass::KIND];
        let lists = Shared::new(core_kinds.into_iter().chain(claim_kinds).collect());
        tokio::join!(
            watch_kind::<Node>(client.clone(), &index, &lists),
            watch_kind::<Pod>(client.clone(), &index, &lists),
            watch_kind::<ResourceSlice>(client.clone(), &index, &lists),
            watch_kind::<ResourceClaim>(client.clone(), &index, &lists),
            watch_kind::<DeviceClass>(client, &index, &lists)
        );
    } else {
        tracing::info!("this cluster has no resource.k8s.io/v1: pods with claims are not ranked");
        let lists = Shared::new(core_kinds.into());
        tokio::join!(
            watch_kind::<Node>(client.clone(), &index, &lists),
            watch_kind::<Pod>(client, &index, &lists)
        );
    }
}

/// True if the cluster serves `resource.k8s.io/v1`. Waits while the API server is unreachable.
async fn serves_resource_api(client: &kube::Client) -> bool {
    let mut is_reported = false;
    loop {
        match client.list_api_groups().await {
            Ok(list) => {
                let versions = list.groups.iter().flat_map(|group| &group.versions);
                return versions.into_iter().any(|it| it.group_version == "resource.k8s.io/v1");
            }
            Err(error) if !is_reported => {
                tracing::warn!(error = causes(&error), "API server not reached: waiting for it");
                is_reported = true;
            }
            Err(_) => {}
        }
        sleep(DISCOVERY_RETRY_INTERVAL).await;
    }
}

async fn watch_kind<K: WatchedKind>(
    client: kube::Client,
    index: &Arc<Shared<Index>>,
    lists: &PendingLists,
) {
    let config = watcher::Config::default().page_size(access::PAGE_SIZE);
    let mut events = pin!(watcher::watcher(Api::<K>::all(client), config).default_backoff());
    let (mut list_facts, mut list_number, mut is_failing) = (Vec::new(), None, false);
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                // The watcher retries by itself. Only the first of consecutive failures is logged.
                if !is_failing {
                    tracing::warn!(
                        kind = K::KIND,
                        error = causes(&error),
                        "watch failed: the last view is kept"
                    );
                }
                is_failing = true;
                continue;
            }
        };
        if is_failing {
            tracing::info!(kind = K::KIND, "watch works again");
            is_failing = false;
        }
        match event {
            Event::Init => {
                list_facts.clear();
                list_number = index.with_lock(|index| K::begin_list(list_number, index));
            }
            Event::InitApply(object) => list_facts.push(object.facts()),
            Event::InitDone => {
                let objects = std::mem::take(&mut list_facts);
                index.with_lock(|index| K::set_all(objects, list_number, index));
                complete_list::<K>(index, lists);
            }
            Event::Apply(object) => index.with_lock(|index| K::set(object.facts(), index)),
            Event::Delete(object) => index.with_lock(|index| object.remove(index)),
        }
    }
}

/// Marks the first list of a kind as complete. The view is complete after the first lists of all kinds.
fn complete_list<K: WatchedKind>(index: &Arc<Shared<Index>>, lists: &PendingLists) {
    let is_complete = lists.with_lock(|lists| {
        lists.remove(K::KIND);
        lists.is_empty()
    });
    if is_complete && !index.with_lock(|index| index.is_synced()) {
        let (nodes, pods) = index.with_lock(|index| {
            index.set_synced();
            index.counts()
        });
        tracing::info!(nodes, pods, "view complete");
    }
}

// === impl Relister ===

impl Relister {
    pub(crate) fn new(client: kube::Client, index: Arc<Shared<Index>>) -> Self {
        Self { client, index }
    }

    /// Lists all pods now, and gives up all waiting gangs: another replica may have bound pods to their reserved
    /// devices.
    pub(crate) async fn relist_pods(&self) -> kube::Result<()> {
        let list = self.index.with_lock(Index::begin_list);
        let pods = Api::<Pod>::all(self.client.clone());
        match access::list(&pods, Pod::facts).await {
            Ok(pods) => self.index.with_lock(|index| {
                let given_up = index.give_up_all();
                if given_up > 0 {
                    tracing::warn!(given_up, "gangs given up: another replica may have bound pods");
                }
                index.end_list(list, pods);
            }),
            Err(error) => {
                self.index.with_lock(|index| index.abandon_list(list));
                return Err(error);
            }
        }
        Ok(())
    }
}

// === impl WatchedKind ===

impl WatchedKind for Node {
    const KIND: &'static str = "nodes";
    type Facts = NodeFacts;

    fn facts(self) -> NodeFacts {
        NodeFacts::of(&self)
    }

    fn key(facts: &NodeFacts) -> String {
        facts.name.clone()
    }

    fn set(facts: NodeFacts, index: &mut Index) {
        index.set_node(facts);
    }

    fn remove(self, index: &mut Index) {
        index.remove_node(&self.name_any());
    }

    fn retain(keys: &HashSet<String>, index: &mut Index) {
        index.retain_nodes(keys);
    }
}

impl WatchedKind for Pod {
    const KIND: &'static str = "pods";
    type Facts = PodFacts;

    fn facts(self) -> PodFacts {
        PodFacts::of(&self)
    }

    fn key(facts: &PodFacts) -> String {
        facts.uid.clone()
    }

    fn set(facts: PodFacts, index: &mut Index) {
        index.set_pod(facts);
    }

    fn remove(self, index: &mut Index) {
        index.remove_pod(&self.uid().unwrap_or_default());
    }

    /// Lists of pods have numbers: binds and the watch change pods while a list runs.
    fn begin_list(earlier: Option<u64>, index: &mut Index) -> Option<u64> {
        if let Some(earlier) = earlier {
            index.abandon_list(earlier);
        }
        Some(index.begin_list())
    }

    fn set_all(pods: Vec<PodFacts>, list: Option<u64>, index: &mut Index) {
        index.end_list(list.expect("a list begins before it ends"), pods);
    }

    fn retain(_: &HashSet<String>, _: &mut Index) {}
}

impl WatchedKind for ResourceSlice {
    const KIND: &'static str = "resourceslices";
    type Facts = Self;

    fn facts(self) -> Self {
        self
    }

    fn key(slice: &Self) -> String {
        slice.name_any()
    }

    fn set(slice: Self, index: &mut Index) {
        index.set_slice(slice);
    }

    fn remove(self, index: &mut Index) {
        index.remove_slice(&self.name_any());
    }

    fn retain(keys: &HashSet<String>, index: &mut Index) {
        index.retain_slices(keys);
    }
}

impl WatchedKind for ResourceClaim {
    const KIND: &'static str = "resourceclaims";
    type Facts = Self;

    fn facts(self) -> Self {
        self
    }

    fn key(claim: &Self) -> String {
        format!("{}/{}", claim.namespace().unwrap_or_default(), claim.name_any())
    }

    fn set(claim: Self, index: &mut Index) {
        index.set_claim(claim);
    }

    fn remove(self, index: &mut Index) {
        index.remove_claim(&self.namespace().unwrap_or_default(), &self.name_any());
    }

    fn retain(keys: &HashSet<String>, index: &mut Index) {
        index.retain_claims(keys);
    }
}

impl WatchedKind for DeviceClass {
    const KIND: &'static str = "deviceclasses";
    type Facts = Self;

    fn facts(self) -> Self {
        self
    }

    fn key(class: &Self) -> String {
        class.name_any()
    }

    fn set(class: Self, index: &mut Index) {
        index.set_class(class);
    }

    fn remove(self, index: &mut Index) {
        let deleted = self.name_any();
        index.retain_classes(|name| name != deleted);
    }

    fn retain(keys: &HashSet<String>, index: &mut Index) {
        index.retain_classes(|name| keys.contains(name));
    }
}
