//! Direct access to the server's objects, for tests, the scheduler and the embedded kubelet.

use std::{fmt, time::Duration};

use k8s_openapi::api::{core::v1::Node, resource::v1::ResourceSlice};
use serde_json::Value;
use tokio::{sync::watch, time::timeout};

use super::{
    kind::{Kind, Object},
    refusal::Refusal,
    request::{ApiRequest, NamespacedName, Part},
    server_state::ServerState,
    store::GroupResource,
};

/// Handle to all objects. Clones share them.
#[derive(Clone)]
pub struct Objects {
    state: watch::Sender<ServerState>,
}

/// A wait that reached its time limit. The message lists all objects at that time.
#[derive(Clone, Debug, thiserror::Error)]
#[error("not within {limit:?}: {objects}")]
pub struct WaitTimeout {
    limit: Duration,
    objects: String,
}

// === impl Objects ===

impl Objects {
    pub(crate) fn new(state: watch::Sender<ServerState>) -> Self {
        Self { state }
    }

    /// Stores an object with its status as given, without gates and validation. Replaces an object of the same name.
    pub fn put<T: Object>(&self, object: &T) -> T {
        let result = self.write(|state| state.put(Kind::typed::<T>(), json(object)));
        typed(result.expect("the object has a name"))
    }

    /// Creates an object as a client does.
    pub fn create<T: Object>(&self, object: &T) -> Result<T, Refusal> {
        let namespace = object.metadata().namespace.clone().unwrap_or_default();
        let create =
            |state: &mut ServerState| state.create(Kind::typed::<T>(), &namespace, json(object));
        self.write(create).map(typed)
    }

    /// Replaces an object as a client does. Without a resource version it replaces any version.
    pub fn update<T: Object>(&self, object: &T) -> Result<T, Refusal> {
        self.replace(object, Part::Main)
    }

    /// Replaces an object's status as a client does.
    pub fn update_status<T: Object>(&self, object: &T) -> Result<T, Refusal> {
        self.replace(object, Part::Status)
    }

    fn replace<T: Object>(&self, object: &T, part: Part) -> Result<T, Refusal> {
        let id = id_of(object);
        let update =
            |state: &mut ServerState| state.update(Kind::typed::<T>(), &id, (part, json(object)));
        self.write(update).map(typed)
    }

    /// The object of this name. The namespace of a cluster-scoped object is empty.
    pub fn get<T: Object>(&self, namespace: &str, name: &str) -> Option<T> {
        let id = NamespacedName { namespace: namespace.to_owned(), name: name.to_owned() };
        let state = self.state.borrow();
        state.store.get(Kind::typed::<T>(), &id).map(|entry| typed(entry.object.clone()))
    }

    /// All objects of a kind, sorted by namespace and name.
    pub fn list<T: Object>(&self) -> Vec<T> {
        let state = self.state.borrow();
        state.store.all(Kind::typed::<T>()).map(|(_, object)| typed(object.clone())).collect()
    }

    /// Deletes an object as a client does.
    pub fn delete<T: Object>(&self, namespace: &str, name: &str) -> Result<(), Refusal> {
        let id = NamespacedName { namespace: namespace.to_owned(), name: name.to_owned() };
        self.write(|state| state.delete(Kind::typed::<T>(), &id, &Value::Null)).map(drop)
    }

    /// Deletes a node's slices, as a kubelet does at each start. Returns their number.
    pub fn delete_all_slices(&self, node: &str) -> usize {
        self.delete_slices(|slice| slice.spec.node_name.as_deref() == Some(node))
    }

    /// Deletes a driver's slices of a node, as a kubelet does 30 s after the driver has gone. Returns their number.
    pub fn wipe_driver_slices(&self, node: &str, driver: &str) -> usize {
        self.delete_slices(|slice| {
            slice.spec.node_name.as_deref() == Some(node) && slice.spec.driver == driver
        })
    }

    fn delete_slices(&self, is_target: impl Fn(&ResourceSlice) -> bool) -> usize {
        let slices: Vec<ResourceSlice> = self.list();
        let names = slices.iter().filter(|slice| is_target(slice)).map(id_of);
        // A concurrent deletion has the same effect.
        names.filter(|id| self.delete::<ResourceSlice>("", &id.name).is_ok()).count()
    }

    /// Deletes a node and its orphans. Returns the number of orphans.
    pub fn delete_node(&self, node: &str) -> Result<usize, Refusal> {
        self.delete::<Node>("", node)?;
        Ok(self.collect_garbage())
    }

    /// Deletes objects whose owners are all deleted, until there are none. Returns their number.
    pub fn collect_garbage(&self) -> usize {
        self.write(|state| {
            let mut count = 0;
            while let Some((kind, id)) = orphan(state) {
                state.store.remove(kind, &id);
                count += 1;
            }
            count
        })
    }

    /// All requests, in order.
    pub fn requests(&self) -> Vec<ApiRequest> {
        self.state.borrow().requests.clone()
    }

    /// All refused requests, in order, without injected refusals.
    pub fn refused_requests(&self) -> Vec<(ApiRequest, Refusal)> {
        self.state.borrow().refused_requests.clone()
    }

    /// Clears the logs of requests and refusals, for servers that run for hours.
    pub fn clear_log(&self) {
        self.write(|state| {
            state.requests.clear();
            state.refused_requests.clear();
        });
    }

    /// Discards the history, so that watches from older versions must list again.
    pub fn compact(&self) {
        self.write(|state| state.store.compact());
    }

    /// Ends all watches.
    pub fn end_watches(&self) {
        self.write(|state| state.store.end_watches());
    }

    /// Waits until the objects fulfil a condition, and returns its value.
    pub async fn wait_until<T>(
        &self,
        limit: Duration,
        mut condition: impl FnMut(&Self) -> Option<T>,
    ) -> Result<T, WaitTimeout> {
        let mut changes = self.state.subscribe();
        let wait = timeout(limit, async {
            loop {
                changes.mark_unchanged();
                if let Some(value) = condition(self) {
                    return value;
                }
                changes.changed().await.expect("this handle owns a sender");
            }
        });
        wait.await.map_err(|_| WaitTimeout { limit, objects: format!("{self:?}") })
    }

    fn write<T>(&self, change: impl FnOnce(&mut ServerState) -> T) -> T {
        let mut result = None;
        self.state.send_modify(|state| result = Some(change(state)));
        result.expect("set by the closure above")
    }
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.borrow();
        let objects = state.store.all_objects().map(|((_, kind), id, object)| {
            (format!("{kind} {}/{}", id.namespace, id.name), object.to_string())
        });
        f.debug_map().entries(objects).finish()
    }
}

/// An object with owners that are all deleted.
fn orphan(state: &ServerState) -> Option<(GroupResource, NamespacedName)> {
    let uids: Vec<_> =
        state.store.all_objects().map(|(_, _, object)| &object["metadata"]["uid"]).collect();
    let is_orphan = |object: &Value| {
        let owners = object["metadata"]["ownerReferences"].as_array();
        owners.is_some_and(|owners| {
            !owners.is_empty() && owners.iter().all(|owner| !uids.contains(&&owner["uid"]))
        })
    };
    let mut objects = state.store.all_objects();
    objects.find(|(_, _, object)| is_orphan(object)).map(|(kind, id, _)| (kind, id.clone()))
}

fn id_of<T: Object>(object: &T) -> NamespacedName {
    let metadata = object.metadata();
    NamespacedName {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
    }
}

fn json<T: Object>(object: &T) -> Value {
    serde_json::to_value(object).expect("an object of the API is JSON")
}

fn typed<T: Object>(object: Value) -> T {
    serde_json::from_value(object).expect("stored objects have the shape of their type")
}
