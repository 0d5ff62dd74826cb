//! Watches of nodes, pods and the objects of claims: every change reaches the index.
//!
//! A watch begins with a list, continues from its version for as long as the API server remembers it, and comes back
//! with back-off after a failure. The index keeps its last state meanwhile.

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

/// A kind of objects that the index follows.
trait Followed: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static {
    /// Its name in logs.
    const KIND: &'static str;
    /// The part of an object that is kept.
    type Facts;

    fn facts(self) -> Self::Facts;
    /// Identity within the kind.
    fn key(facts: &Self::Facts) -> String;
    fn set(facts: Self::Facts, index: &mut Index);
    fn remove(self, index: &mut Index);
    /// Notes the keys of all objects that there are. Others are gone.
    fn retain(keys: &HashSet<String>, index: &mut Index);

    /// Begins a list, and gives up an earlier one.
    fn begin_list(_: Option<u64>, _: &mut Index) -> Option<u64> {
        None
    }

    /// Notes all objects of a list.
    fn set_all(all: Vec<Self::Facts>, _: Option<u64>, index: &mut Index) {
        let keys = all.iter().map(Self::key).collect();
        for facts in all {
            Self::set(facts, index);
        }
        Self::retain(&keys, index);
    }
}

/// Lists that are read again on demand.
pub(crate) struct Refresh {
    client: kube::Client,
    index: Arc<Shared<Index>>,
}

/// Pause before the API server is asked again for the kinds that it has.
const ASK_AGAIN: Duration = Duration::from_secs(2);

/// Kinds whose first list is awaited.
type Lists = Shared<HashSet<&'static str>>;

/// Follows nodes and pods, and the objects of Dynamic Resource Allocation where the cluster has them. Ends with its
/// future.
pub(crate) async fn follow(client: kube::Client, index: Arc<Shared<Index>>) {
    let always = [Node::KIND, Pod::KIND];
    if has_claims(&client).await {
        let more = [ResourceSlice::KIND, ResourceClaim::KIND, DeviceClass::KIND];
        let lists = Shared::new(always.into_iter().chain(more).collect());
        tokio::join!(
            follow_kind::<Node>(client.clone(), &index, &lists),
            follow_kind::<Pod>(client.clone(), &index, &lists),
            follow_kind::<ResourceSlice>(client.clone(), &index, &lists),
            follow_kind::<ResourceClaim>(client.clone(), &index, &lists),
            follow_kind::<DeviceClass>(client, &index, &lists)
        );
    } else {
        tracing::info!("this cluster has no resource.k8s.io/v1: pods with claims are not ranked");
        let lists = Shared::new(always.into());
        tokio::join!(
            follow_kind::<Node>(client.clone(), &index, &lists),
            follow_kind::<Pod>(client, &index, &lists)
        );
    }
}

/// The cluster serves Dynamic Resource Allocation, version 1. Waits for an API server that is away.
async fn has_claims(client: &kube::Client) -> bool {
    let mut is_told = false;
    loop {
        match client.list_api_groups().await {
            Ok(list) => {
                let versions = list.groups.iter().flat_map(|group| &group.versions);
                return versions.into_iter().any(|it| it.group_version == "resource.k8s.io/v1");
            }
            Err(error) if !is_told => {
                tracing::warn!(error = causes(&error), "API server not reached: waiting for it");
                is_told = true;
            }
            Err(_) => {}
        }
        sleep(ASK_AGAIN).await;
    }
}

async fn follow_kind<K: Followed>(client: kube::Client, index: &Arc<Shared<Index>>, lists: &Lists) {
    let config = watcher::Config::default().page_size(access::PAGE);
    let mut events = pin!(watcher::watcher(Api::<K>::all(client), config).default_backoff());
    let (mut listed, mut list, mut is_failing) = (Vec::new(), None, false);
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                // The library tries again; the first failure of a row is told.
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
                listed.clear();
                list = index.step(|index| K::begin_list(list, index));
            }
            Event::InitApply(object) => listed.push(object.facts()),
            Event::InitDone => {
                let objects = std::mem::take(&mut listed);
                index.step(|index| K::set_all(objects, list, index));
                completed::<K>(index, lists);
            }
            Event::Apply(object) => index.step(|index| K::set(object.facts(), index)),
            Event::Delete(object) => index.step(|index| object.remove(index)),
        }
    }
}

/// Notes that the first list of a kind is complete; with the last one the view is.
fn completed<K: Followed>(index: &Arc<Shared<Index>>, lists: &Lists) {
    let is_complete = lists.step(|lists| {
        lists.remove(K::KIND);
        lists.is_empty()
    });
    if is_complete && !index.step(|index| index.is_synced()) {
        let (nodes, pods) = index.step(|index| {
            index.set_synced();
            index.counts()
        });
        tracing::info!(nodes, pods, "view complete");
    }
}

// === impl Refresh ===

impl Refresh {
    pub(crate) fn new(client: kube::Client, index: Arc<Shared<Index>>) -> Self {
        Self { client, index }
    }

    /// Reads all pods as they are now. Another replica may have bound some, so no place that is reserved is sure any more.
    pub(crate) async fn pods(&self) -> kube::Result<()> {
        let list = self.index.step(Index::begin_list);
        let pods = Api::<Pod>::all(self.client.clone());
        match access::list(&pods, Pod::facts).await {
            Ok(pods) => self.index.step(|index| {
                let given_up = index.give_up_all();
                if given_up > 0 {
                    tracing::warn!(given_up, "gangs given up: another replica may have bound pods");
                }
                index.end_list(list, pods);
            }),
            Err(error) => {
                self.index.step(|index| index.abandon_list(list));
                return Err(error);
            }
        }
        Ok(())
    }
}

// === impl Followed ===

impl Followed for Node {
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

impl Followed for Pod {
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

    /// Pods change beside a list: binds place them.
    fn begin_list(earlier: Option<u64>, index: &mut Index) -> Option<u64> {
        if let Some(earlier) = earlier {
            index.abandon_list(earlier);
        }
        Some(index.begin_list())
    }

    fn set_all(all: Vec<PodFacts>, list: Option<u64>, index: &mut Index) {
        index.end_list(list.expect("a list begins before it ends"), all);
    }

    fn retain(_: &HashSet<String>, _: &mut Index) {}
}

impl Followed for ResourceSlice {
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

impl Followed for ResourceClaim {
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

impl Followed for DeviceClass {
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
        let gone = self.name_any();
        index.retain_classes(|name| name != gone);
    }

    fn retain(keys: &HashSet<String>, index: &mut Index) {
        index.retain_classes(|name| keys.contains(name));
    }
}
