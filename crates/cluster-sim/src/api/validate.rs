//! Validation of objects, as in the real server.
//!
//! Slices are validated completely, except for `nodeAllocatableResourceMappings`. Claims are validated on update
//! only. Other kinds are not validated.

mod capacity;
mod claim;
mod device;
mod name;
mod slice;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{kind::Kind, refusal::Cause};

/// All problems of the new object.
pub(crate) fn causes(kind: &Kind, new: &Value, old: Option<&Value>) -> Vec<Cause> {
    match kind.resource {
        "resourceslices" => slice::causes(&typed(new), old.map(typed).as_ref()),
        "resourceclaims" => {
            old.map_or_else(Vec::new, |old| claim::causes(&typed(new), &typed(old)))
        }
        _ => Vec::new(),
    }
}

fn typed<T: DeserializeOwned>(object: &Value) -> T {
    T::deserialize(object).expect("the object was deserialised before")
}
