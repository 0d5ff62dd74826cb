//! Updates of the index by watch events and lists.

use std::collections::HashSet;

use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};

use super::{
    Index, PodEntry,
    claim_ranks::ClaimRanks,
    claims::{allocation, key},
    current_node,
    gangs::by_age,
};
use crate::facts::{NodeFacts, PodFacts};

// === impl Index ===

impl Index {
    /// Adds or updates a Node.
    pub fn set_node(&mut self, facts: NodeFacts) {
        let node = self.node_of(&facts.name);
        let entry = self.entry(node);
        if !entry.has_object || entry.object != facts {
            for error in facts
                .annotation_errors
                .iter()
                .filter(|it| !entry.object.annotation_errors.contains(it))
            {
                tracing::warn!(node = facts.name, mistake = error, "node misdescribes its devices");
            }
            entry.has_object = true;
            self.claims.set_labels(&facts.name, &facts.labels);
            self.entries[node.0 as usize].object = facts;
            self.changed.insert(node);
        }
    }

    /// Removes a Node. Its pods are kept until their own objects are deleted.
    pub fn remove_node(&mut self, name: &str) {
        if let Some(node) = self.nodes.get(name).copied() {
            let entry = self.entry(node);
            entry.object = NodeFacts { name: name.to_owned(), ..NodeFacts::default() };
            entry.has_object = false;
            self.changed.insert(node);
        }
    }

    /// Adds or updates a Pod. A pod that has ended holds no devices, and is removed.
    pub fn set_pod(&mut self, facts: PodFacts) {
        if facts.is_ended {
            self.remove_pod(&facts.uid);
            return;
        }
        self.record_pod_change(&facts.uid);
        let cached = self.pods.get(&facts.uid);
        // A list and the watch run concurrently, so either may deliver an older version.
        let is_old = |cached: &PodEntry| {
            cached.facts.resource_version > facts.resource_version || cached.facts == facts
        };
        if cached.is_some_and(is_old) {
            return;
        }
        let (is_new, before) = (cached.is_none(), current_node(cached));
        if cached.is_none_or(|cached| cached.facts.unschedulable != facts.unschedulable) {
            self.report_if_unschedulable(&facts);
        }
        // An event without a node may be older than the assumed placement. Keep the placement.
        let assumed = match &facts.node {
            None => self.pods.get_mut(&facts.uid).and_then(|cached| cached.assumed.take()),
            Some(_) => None,
        };
        let cached = self.pods.get(&facts.uid).map(|cached| &cached.facts);
        let is_in_its_gang = self.gangs.set(cached, &facts);
        // A pod that leaves its gang loses the place reserved there.
        let assumed = assumed.filter(|assumed| is_in_its_gang || !assumed.is_reserved);
        let after = facts.node.clone().or_else(|| assumed.as_ref().map(|it| it.node.clone()));
        self.move_pod(&facts.uid, before.as_deref(), after.as_deref());
        if is_new && self.is_synced {
            self.observe(&facts);
        }
        self.pods.insert(facts.uid.clone(), PodEntry { facts, assumed });
    }

    /// Removes a Pod.
    pub fn remove_pod(&mut self, uid: &str) {
        self.record_pod_change(uid);
        self.unschedulable.remove(uid);
        if let Some(entry) = self.pods.remove(uid) {
            self.gangs.remove(&entry.facts);
            let node = current_node(Some(&entry));
            self.move_pod(uid, node.as_deref(), None);
        }
    }

    /// Removes all nodes but the named ones.
    pub fn retain_nodes(&mut self, names: &HashSet<String>) {
        let deleted = self.nodes.keys().filter(|name| !names.contains(*name));
        for name in deleted.cloned().collect::<Vec<_>>() {
            self.remove_node(&name);
        }
    }

    /// Begins a list of all pods, and returns the list's number. The watch and binds continue during the list.
    pub fn begin_list(&mut self) -> u64 {
        self.list_count += 1;
        self.changed_during_list.insert(self.list_count, HashSet::new());
        self.list_count
    }

    /// Applies a list of all pods. Changes since the list began are newer than the list: a pod removed since then is
    /// not added again, and a pod added since then is not removed.
    pub fn end_list(&mut self, list: u64, pods: Vec<PodFacts>) {
        let changed = self.changed_during_list.remove(&list).unwrap_or_default();
        let listed_uids: HashSet<_> = pods.iter().map(|pod| pod.uid.clone()).collect();
        for pod in pods {
            if self.pods.contains_key(&pod.uid) || !changed.contains(&pod.uid) {
                self.set_pod(pod);
            }
        }
        let deleted =
            self.pods.keys().filter(|uid| !listed_uids.contains(*uid) && !changed.contains(*uid));
        for uid in deleted.cloned().collect::<Vec<_>>() {
            self.remove_pod(&uid);
        }
    }

    /// Ends a list that failed.
    pub fn abandon_list(&mut self, list: u64) {
        self.changed_during_list.remove(&list);
    }

    /// Records a change of the pod in every list that is in progress.
    pub(super) fn record_pod_change(&mut self, uid: &str) {
        for changed in self.changed_during_list.values_mut() {
            changed.insert(uid.to_owned());
        }
    }

    /// Adds or updates a `ResourceSlice`.
    pub fn set_slice(&mut self, slice: ResourceSlice) {
        let node = self.claims.set_slice(slice);
        self.mark_changed(node);
    }

    /// Removes a `ResourceSlice`.
    pub fn remove_slice(&mut self, name: &str) {
        let node = self.claims.remove_slice(name);
        self.mark_changed(node);
    }

    /// Removes all `ResourceSlices` but the named ones.
    pub fn retain_slices(&mut self, names: &HashSet<String>) {
        for name in self.claims.slice_names().iter().filter(|name| !names.contains(*name)) {
            self.remove_slice(name);
        }
    }

    /// Adds or updates a `ResourceClaim`.
    pub fn set_claim(&mut self, claim: ResourceClaim) {
        if let Some(allocation) = allocation(&claim) {
            let has_node = |node: &str| self.claims.nodes_of(allocation).contains(node);
            self.predictions.compare(&key(&claim), allocation, has_node);
        }
        let nodes = self.claims.set_claim(claim);
        self.mark_changed(nodes);
    }

    /// Removes a `ResourceClaim`.
    pub fn remove_claim(&mut self, namespace: &str, name: &str) {
        let key = (namespace.to_owned(), name.to_owned());
        self.predictions.remove(&key);
        let nodes = self.claims.remove_claim(&key);
        self.mark_changed(nodes);
    }

    /// Removes all `ResourceClaims` but the ones listed as `namespace/name`.
    pub fn retain_claims(&mut self, names: &HashSet<String>) {
        let is_deleted = |key: &(String, String)| !names.contains(&format!("{}/{}", key.0, key.1));
        for (namespace, name) in self.claims.claim_keys().into_iter().filter(is_deleted) {
            self.remove_claim(&namespace, &name);
        }
    }

    /// Adds or updates a `DeviceClass`.
    pub fn set_class(&mut self, class: DeviceClass) {
        if self.claims.set_class(class) {
            self.claim_ranks = ClaimRanks::default();
        }
    }

    /// Removes each `DeviceClass` for whose name `exists` returns false.
    pub fn retain_classes(&mut self, exists: impl Fn(&str) -> bool) {
        if self.claims.retain_classes(exists) {
            self.claim_ranks = ClaimRanks::default();
        }
    }

    /// Marks the view as complete, and adds all pods of the index to the forecast, oldest first.
    pub fn set_synced(&mut self) {
        if self.is_synced {
            return;
        }
        self.is_synced = true;
        self.rebuild_changed();
        let mut pods: Vec<_> = self.pods.values().map(|pod| pod.facts.clone()).collect();
        pods.sort_by(by_age);
        for pod in &pods {
            self.observe(pod);
            self.report_if_unschedulable(pod);
        }
    }

    /// Adds the pod to the unschedulable ones if it is one. Before the first sync, reasons would be wrong.
    fn report_if_unschedulable(&mut self, pod: &PodFacts) {
        if self.is_synced && pod.unschedulable.is_some() && pod.needs_devices() {
            self.unschedulable.insert(pod.uid.clone());
            self.unschedulable_added.notify_one();
        }
    }

    /// Adds the pod's request to the forecast if the pod requests GPUs.
    fn observe(&mut self, pod: &PodFacts) {
        if let Ok(request) = pod.resources.request(self.view.catalog())
            && pod.resources.gpus.as_ref().is_ok_and(|request| request.is_some())
        {
            self.scheduler.observe(&self.view, &request);
        }
    }

    /// Marks nodes for a rebuild.
    fn mark_changed(&mut self, names: impl IntoIterator<Item = String>) {
        for name in names {
            let node = self.node_of(&name);
            self.changed.insert(node);
        }
    }
}
