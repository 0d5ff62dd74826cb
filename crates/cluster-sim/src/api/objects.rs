//! Direct access to the server's objects, for tests, the scheduler and the embedded kubelet.

use std::{fmt, time::Duration};

use k8s_openapi::api::{core::v1::Node, resource::v1::ResourceSlice};
use serde_json::Value;
use tokio::{sync::watch, time::timeout};

use super::{
    kind::{Kind, Object},
    refusal::Refusal,
    request::{ApiRequest, Id, Part},
    world::World,
};

/// Handle to all objects. Clones share them.
#[derive(Clone)]
pub struct Objects {
    world: watch::Sender<World>,
}

/// Timeout of a wait. The text has the state at that time.
#[derive(Clone, Debug, thiserror::Error)]
#[error("not within {limit:?}: {found}")]
pub struct NotInTime {
    limit: Duration,
    found: String,
}

// === impl Objects ===

impl Objects {
    pub(crate) fn new(world: watch::Sender<World>) -> Self {
        Self { world }
    }

    /// Stores an object with its status as given, without gates and validation. Replaces an object of the same name.
    pub fn put<T: Object>(&self, object: &T) -> T {
        let kept = self.write(|world| world.put(Kind::typed::<T>(), json(object)));
        typed(kept.expect("an object with a name"))
    }

    /// Creates an object as a client does.
    pub fn create<T: Object>(&self, object: &T) -> Result<T, Refusal> {
        let namespace = object.metadata().namespace.clone().unwrap_or_default();
        let make = |world: &mut World| world.create(Kind::typed::<T>(), &namespace, json(object));
        self.write(make).map(typed)
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
        let change =
            |world: &mut World| world.update(Kind::typed::<T>(), &id, (part, json(object)));
        self.write(change).map(typed)
    }

    /// The object of this name. The namespace of a cluster-scoped object is empty.
    pub fn get<T: Object>(&self, namespace: &str, name: &str) -> Option<T> {
        let id = Id { namespace: namespace.to_owned(), name: name.to_owned() };
        let world = self.world.borrow();
        world.store.get(Kind::typed::<T>(), &id).map(|entry| typed(entry.object.clone()))
    }

    /// All objects of a kind, sorted by namespace and name.
    pub fn list<T: Object>(&self) -> Vec<T> {
        let world = self.world.borrow();
        world.store.all(Kind::typed::<T>()).map(|(_, object)| typed(object.clone())).collect()
    }

    /// Deletes an object as a client does.
    pub fn delete<T: Object>(&self, namespace: &str, name: &str) -> Result<(), Refusal> {
        let id = Id { namespace: namespace.to_owned(), name: name.to_owned() };
        self.write(|world| world.delete(Kind::typed::<T>(), &id, &Value::Null)).map(drop)
    }

    /// Deletes a node's slices, as a kubelet does at each start. Returns their number.
    pub fn wipe_slices(&self, node: &str) -> usize {
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

    /// Deletes objects whose owners are all gone, until none is left. Returns their number.
    pub fn collect_garbage(&self) -> usize {
        self.write(|world| {
            let mut gone = 0;
            while let Some((kind, id)) = orphan(world) {
                world.store.forget(kind, &id);
                gone += 1;
            }
            gone
        })
    }

    /// All requests, in order.
    pub fn log(&self) -> Vec<ApiRequest> {
        self.world.borrow().log.clone()
    }

    /// All refused requests, in order. Injected refusals are left out.
    pub fn refused(&self) -> Vec<(ApiRequest, Refusal)> {
        self.world.borrow().refused.clone()
    }

    /// Clears the logs of requests and refusals, for servers that run for hours.
    pub fn clear_log(&self) {
        self.write(|world| {
            world.log.clear();
            world.refused.clear();
        });
    }

    /// Discards the history, so that watches from older versions have to list again.
    pub fn compact(&self) {
        self.write(|world| world.store.compact());
    }

    /// Ends all watches.
    pub fn cut_watches(&self) {
        self.write(|world| world.store.cut_watches());
    }

    /// Waits until the objects fulfil a condition, and returns its value.
    pub async fn until<T>(
        &self,
        limit: Duration,
        mut condition: impl FnMut(&Self) -> Option<T>,
    ) -> Result<T, NotInTime> {
        let mut changes = self.world.subscribe();
        let reached = timeout(limit, async {
            loop {
                changes.mark_unchanged();
                if let Some(found) = condition(self) {
                    return found;
                }
                changes.changed().await.expect("this handle keeps the sender");
            }
        });
        reached.await.map_err(|_| NotInTime { limit, found: format!("{self:?}") })
    }

    fn write<T>(&self, change: impl FnOnce(&mut World) -> T) -> T {
        let mut result = None;
        self.world.send_modify(|world| result = Some(change(world)));
        result.expect("written by the line above")
    }
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let world = self.world.borrow();
        let objects = world.store.all_objects().map(|((_, kind), id, object)| {
            (format!("{kind} {}/{}", id.namespace, id.name), object.to_string())
        });
        f.debug_map().entries(objects).finish()
    }
}

type Gone = ((&'static str, &'static str), Id);

/// Object whose owners are all gone.
fn orphan(world: &World) -> Option<Gone> {
    let uids: Vec<_> = world.store.all_objects().map(|(_, _, o)| &o["metadata"]["uid"]).collect();
    let is_orphan = |object: &Value| {
        let owners = object["metadata"]["ownerReferences"].as_array();
        owners.is_some_and(|owners| {
            !owners.is_empty() && owners.iter().all(|owner| !uids.contains(&&owner["uid"]))
        })
    };
    let mut all = world.store.all_objects();
    all.find(|(_, _, object)| is_orphan(object)).map(|(kind, id, _)| (kind, id.clone()))
}

fn id_of<T: Object>(object: &T) -> Id {
    let metadata = object.metadata();
    Id {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
    }
}

fn json<T: Object>(object: &T) -> Value {
    serde_json::to_value(object).expect("an object of the API is JSON")
}

fn typed<T: Object>(object: Value) -> T {
    serde_json::from_value(object).expect("what is kept has the shape of its type")
}
