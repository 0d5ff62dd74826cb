//! The gang of a pod: pods that start together or not at all.
//!
//! | key | meaning |
//! | --- | --- |
//! | label `windlass.dev/gang` | name of the gang, in the pod's namespace |
//! | annotation `windlass.dev/gang-size` | number of pods that start together |
//! | annotation `windlass.dev/gang-within` | key of the node label, such as the rack's, whose value all nodes share |

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;

use super::{GpuRequest, ResourceRequest};

/// Label with the gang's name.
pub(crate) const GANG: &str = "windlass.dev/gang";
/// Annotation with the gang's size.
const SIZE: &str = "windlass.dev/gang-size";
/// Annotation with the key of the node label whose value all nodes of the gang must share.
const TOPOLOGY_KEY: &str = "windlass.dev/gang-within";
/// Maximum size of a gang. All members of the largest gang can wait at once, and are planned and bound within the
/// default of `--gang-wait` in a cluster of 15,000 nodes.
const MAX_SIZE: usize = 128;
/// Maximum number of pods that wait for their gangs at a time. kube-scheduler holds a connection for each.
pub(crate) const MAX_WAITING: usize = 512;
const _: () = assert!(MAX_SIZE <= MAX_WAITING);

/// Gang of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gang {
    /// The gang's name.
    pub name: String,
    /// Number of pods that start together.
    pub size: usize,
    /// Key of the node label whose value all nodes of the gang must share.
    pub topology_key: Option<String>,
    /// `schedulerName` of the gang's pods. Pods with another scheduler belong to another gang.
    pub scheduler: String,
}

/// A gang whose labels and annotations are invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GangError {
    /// The size is missing, not a number, or out of range.
    #[error(
        "the pod is of gang {gang}, so its annotation {SIZE} has to be a number from 1 to {MAX_SIZE}, not {size:?}"
    )]
    Size {
        /// Name of the gang.
        gang: String,
        /// The size, as written.
        size: String,
    },
    /// Two members have different annotations.
    #[error(
        "pods of gang {gang} differ in {SIZE} or {TOPOLOGY_KEY}, pod {other} for one: set equal values on all"
    )]
    Differs {
        /// Name of the gang.
        gang: String,
        /// Name of another member.
        other: String,
    },
    /// A member selects GPUs by id, which gangs do not support.
    #[error(
        "the pod is of gang {0}, so it cannot name GPUs by nvidia.com/use-gpuuuid or nouse-gpuuuid: use a product"
    )]
    Ids(String),
}

// === impl Gang ===

impl Gang {
    /// Reads the gang of a pod. `None` without the label, and for a pod for which kube-scheduler does not call the
    /// extender: a pod without GPUs, with scheduling gates, or being deleted.
    pub(super) fn of(pod: &Pod, resources: &ResourceRequest) -> Option<Result<Self, GangError>> {
        let (spec, metadata) = (pod.spec.as_ref(), &pod.metadata);
        let gates = spec.and_then(|spec| spec.scheduling_gates.as_ref());
        let is_gated = gates.is_some_and(|gates| !gates.is_empty());
        if resources.gpus == Ok(GpuRequest::None)
            || is_gated
            || metadata.deletion_timestamp.is_some()
        {
            return None;
        }
        let scheduler = spec.and_then(|spec| spec.scheduler_name.clone()).unwrap_or_default();
        let text = |map: &Option<BTreeMap<String, String>>, key| map.as_ref()?.get(key).cloned();
        let name = text(&metadata.labels, GANG).filter(|name| !name.is_empty())?;
        let size = text(&metadata.annotations, SIZE).unwrap_or_default();
        let topology_key = text(&metadata.annotations, TOPOLOGY_KEY).filter(|key| !key.is_empty());
        Some(match size.parse() {
            Ok(1..=MAX_SIZE) if !resources.accepted.accepts_all_ids() => Err(GangError::Ids(name)),
            Ok(size @ 1..=MAX_SIZE) => Ok(Self { name, size, topology_key, scheduler }),
            _ => Err(GangError::Size { gang: name, size }),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::facts::PodFacts;

    #[test]
    fn a_gang_has_a_name_and_a_size() {
        let parse_with_deletion =
            |labels: serde_json::Value, annotations: serde_json::Value, deleted: Option<&str>| {
                let pod = json!({
                    "metadata": {"labels": labels, "annotations": annotations,
                                 "deletionTimestamp": deleted},
                    "spec": {"schedulerName": "windlass","containers": [{"name": "c",
                        "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
                });
                PodFacts::of(&serde_json::from_value(pod).expect("a Pod")).gang
            };
        let parse = |labels, annotations| parse_with_deletion(labels, annotations, None);
        let label = json!({GANG: "train"});
        let deleted =
            parse_with_deletion(label.clone(), json!({SIZE: "4"}), Some("2026-01-01T00:00:00Z"));
        assert_eq!(deleted, None, "a pod that is being deleted is no member");
        assert_eq!(parse(json!({}), json!({SIZE: "4"})), None);
        assert_eq!(parse(json!({GANG: ""}), json!({})), None);
        let scheduler = "windlass".to_owned();
        let gang = Gang { name: "train".into(), size: 4, topology_key: None, scheduler };
        assert_eq!(
            parse(label.clone(), json!({SIZE: "4", TOPOLOGY_KEY: ""})),
            Some(Ok(gang.clone()))
        );
        let topology_key = Some("example.com/rack".to_owned());
        let with_rack = parse(label.clone(), json!({SIZE: "4", TOPOLOGY_KEY: "example.com/rack"}));
        assert_eq!(with_rack, Some(Ok(Gang { topology_key, ..gang })));
        for size in ["0", "-1", "129", "four", ""] {
            let error = parse(label.clone(), json!({SIZE: size})).expect("a gang").expect_err(size);
            let message = error.to_string();
            assert!(
                message.contains("a number from 1 to 128")
                    && message.ends_with(&format!("{size:?}"))
            );
        }
        assert!(parse(label.clone(), json!({})).expect("a gang").is_err());
        let by_id = json!({SIZE: "4", "nvidia.com/use-gpuuuid": "GPU-a"});
        assert_eq!(parse(label, by_id), Some(Err(GangError::Ids("train".into()))));
    }
}
