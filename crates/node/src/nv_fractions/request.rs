//! A container's request for a fraction of GPUs, by the annotations of KAI's scheduler.
//!
//! ```text
//!  nvidia.com/container.<name>.gpu-memory.request   4Gi           guaranteed; without it, the limit
//!  nvidia.com/container.<name>.gpu-memory.limit     8Gi           enforced; without it, the request
//!  nvidia.com/container.<name>.gpus.devices         GPU-…,GPU-…   the scheduler's choice: UUIDs or indices
//!  nvidia.com/container.<name>.gpu-compute.mode     time-slicing
//! ```
//!
//! The format is that of `github.com/kai-scheduler/gpu-fractioning` (`fractiond/internal/annotations`).

use std::collections::BTreeMap;

use windlass_core::{
    enforcement::{Enforcement, InvalidEnforcement},
    selector::Amount,
};

/// Request of one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FractionRequest {
    /// Guaranteed memory of each GPU in MiB.
    pub(super) request_mib: u64,
    /// Most memory of each GPU in MiB.
    pub(super) limit_mib: u64,
    /// The scheduler's choice of GPUs.
    pub(super) gpus: RequestedGpus,
    /// The weakest enforcement that the pod accepts.
    pub(super) min_enforcement: Enforcement,
}

/// GPUs of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RequestedGpus {
    /// No annotation, or `all`: the container may see every GPU of the node.
    All,
    /// UUIDs or indices.
    Named(Vec<String>),
}

/// Reason why a request is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FractionRequestError {
    /// The text is no quantity.
    #[error("annotation {key}: {value:?} is no quantity of memory: write one like 4Gi")]
    Quantity { key: String, value: String },
    /// The quantity is too small.
    #[error("annotation {key}: {value} is less than 1 MiB")]
    TooSmall { key: String, value: String },
    /// The request is larger than the limit.
    #[error("its request of {request} MiB is above its limit of {limit} MiB of GPU memory")]
    AboveLimit { request: u64, limit: u64 },
    /// The agent does not offer this way to share compute.
    #[error(
        "annotation {key}: {value:?} is not offered on this node: write time-slicing, or leave it out"
    )]
    UnsupportedMode { key: String, value: String },
    /// The annotation with the weakest accepted enforcement is invalid.
    #[error(transparent)]
    Enforcement(#[from] InvalidEnforcement),
}

const REQUEST: &str = "gpu-memory.request";
const LIMIT: &str = "gpu-memory.limit";
const DEVICES: &str = "gpus.devices";
const MODE: &str = "gpu-compute.mode";

/// The only supported mode of sharing compute.
const TIME_SLICING: &str = "time-slicing";

const MIB: u64 = 1 << 20;

// === impl FractionRequest ===

impl FractionRequest {
    /// The request of the container of this name; `None` without amounts of memory.
    pub(super) fn of(
        container: &str,
        annotations: &BTreeMap<String, String>,
        prefix: &str,
    ) -> Result<Option<Self>, FractionRequestError> {
        let key = |suffix: &str| format!("{prefix}{container}.{suffix}");
        let memory = |suffix: &str| {
            let key = key(suffix);
            annotations.get(&key).map(|value| mib(&key, value)).transpose()
        };
        let (request, limit) = (memory(REQUEST)?, memory(LIMIT)?);
        let Some(limit_mib) = limit.or(request) else { return Ok(None) };
        let request_mib = request.unwrap_or(limit_mib);
        if request_mib > limit_mib {
            return Err(FractionRequestError::AboveLimit {
                request: request_mib,
                limit: limit_mib,
            });
        }
        let mode = key(MODE);
        if let Some(value) = annotations.get(&mode).filter(|value| value.trim() != TIME_SLICING) {
            return Err(FractionRequestError::UnsupportedMode { key: mode, value: value.clone() });
        }
        let devices = annotations.get(&key(DEVICES)).map_or("", |value| value.trim());
        let gpus = match devices {
            "" | "all" => RequestedGpus::All,
            list => RequestedGpus::Named(list.split(',').map(|id| id.trim().to_owned()).collect()),
        };
        let min_enforcement = Enforcement::required_by(annotations)?;
        Ok(Some(Self { request_mib, limit_mib, gpus, min_enforcement }))
    }
}

/// A quantity in whole MiB, rounded up.
fn mib(key: &str, value: &str) -> Result<u64, FractionRequestError> {
    let (key, value) = (key.to_owned(), value.to_owned());
    let Some(amount) = Amount::parse(&value) else {
        return Err(FractionRequestError::Quantity { key, value });
    };
    match u64::try_from(amount.ceil()) {
        Ok(bytes) if bytes >= MIB => Ok(bytes.div_ceil(MIB)),
        _ => Err(FractionRequestError::TooSmall { key, value }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIX: &str = "nvidia.com/container.";

    fn parsed(annotations: &[(&str, &str)]) -> Result<Option<FractionRequest>, String> {
        let prefixed =
            annotations.iter().map(|(key, value)| (format!("{PREFIX}{key}"), (*value).to_owned()));
        FractionRequest::of("a", &prefixed.collect(), PREFIX).map_err(|error| error.to_string())
    }

    #[test]
    fn a_missing_request_or_limit_equals_the_other_and_both_are_whole_mib() {
        for (request, limit, expected) in [
            (Some("4Gi"), Some("8Gi"), (4096, 8192)),
            (Some("4Gi"), None, (4096, 4096)),
            (None, Some("2048Mi"), (2048, 2048)),
            (None, Some("4096M"), (3907, 3907)),
            (None, Some("1048576"), (1, 1)),
            (None, Some("1048577"), (2, 2)),
            (None, Some("0.5Gi"), (512, 512)),
        ] {
            let request = request.map(|value| ("a.gpu-memory.request", value));
            let limit = limit.map(|value| ("a.gpu-memory.limit", value));
            let annotations: Vec<_> = request.into_iter().chain(limit).collect();
            let parsed_request = parsed(&annotations).expect("valid").expect("a request");
            assert_eq!(
                (parsed_request.request_mib, parsed_request.limit_mib),
                expected,
                "{annotations:?}"
            );
        }
    }

    #[test]
    fn a_container_without_amounts_of_its_own_has_no_request() {
        assert_eq!(parsed(&[]), Ok(None));
        assert_eq!(parsed(&[("b.gpu-memory.limit", "1Gi")]), Ok(None));
        let whole = [("a.gpus.devices", "GPU-1"), ("a.gpu-compute.mode", "sm-sharing")];
        assert_eq!(parsed(&whole), Ok(None), "the scheduler gave it a whole GPU");
    }

    #[test]
    fn gpus_are_the_schedulers_choice() {
        let gpus = |value| {
            let result = parsed(&[("a.gpu-memory.limit", "1Gi"), ("a.gpus.devices", value)]);
            result.expect("valid").expect("a request").gpus
        };
        assert_eq!([gpus(" "), gpus("all")], [RequestedGpus::All, RequestedGpus::All]);
        assert_eq!(gpus("GPU-1, 3"), RequestedGpus::Named(vec!["GPU-1".into(), "3".into()]));
    }

    #[test]
    fn a_mistake_is_refused_with_its_annotation() {
        let limit = |value| parsed(&[("a.gpu-memory.limit", value)]).expect_err(value);
        assert_eq!(
            limit("4GB"),
            "annotation nvidia.com/container.a.gpu-memory.limit: \"4GB\" is no quantity of memory: write one like 4Gi"
        );
        for small in ["0", "-4Gi", "1023Ki", "1m"] {
            assert!(limit(small).ends_with(&format!("{small} is less than 1 MiB")), "{small}");
        }
        let request = ("a.gpu-memory.request", "2Gi");
        let error = parsed(&[request, ("a.gpu-memory.limit", "1Gi")]).expect_err("above");
        assert!(error.contains("2048 MiB is above its limit of 1024 MiB"), "{error}");
        for mode in ["sm-sharing", "", "fast"] {
            let error = parsed(&[request, ("a.gpu-compute.mode", mode)]).expect_err(mode);
            assert!(error.contains("is not offered on this node"), "{error}");
        }
        assert!(parsed(&[request, ("a.gpu-compute.mode", "time-slicing")]).is_ok());
    }
}
