//! What the real server would find wrong with an object.

use serde_json::Value;

use super::{kind::Kind, refusal::Cause};

/// All that is wrong with the new object.
pub(crate) fn causes(kind: &Kind, new: &Value, old: Option<&Value>) -> Vec<Cause> {
    match (kind.resource, old) {
        ("resourceclaims", Some(old)) if old["spec"] != new["spec"] => {
            vec![Cause::immutable("spec", &new["spec"])]
        }
        _ => Vec::new(),
    }
}
