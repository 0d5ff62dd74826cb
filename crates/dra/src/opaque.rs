//! Opaque configuration of a claim or its device class. The parser is strict: an unknown parameter is an error, because
//! it would silently have no effect.
//!
//! Two formats are equivalent: `windlass.dev/v1alpha1`, and `resource.nvidia.com/v1beta1` of NVIDIA's driver. An
//! impossible configuration is refused for the devices that it applies to.

use k8s_openapi::api::resource::v1::ResourceClaim;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use windlass_allocations::ledger::ClaimRef;
use windlass_config::DriverName;
use windlass_core::{
    device::{Device, DeviceKind},
    selector::Amount,
};
use windlass_host::causes;

use super::{
    claim::{AllocatedDevice, Claim, OpaqueConfig},
    limits::MpsLimits,
    time_slice::Interval,
};

/// Parsed configurations of a claim; later ones override earlier ones.
#[derive(Debug)]
pub(crate) struct Configs<'a>(Vec<(&'a OpaqueConfig, Parameters)>);

/// Reason why a configuration cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpaqueError {
    #[error("{origin}: {reason}")]
    Unreadable { origin: String, reason: String },
    #[error(
        "{origin}: no kind {kind:?} in {version:?} is known: write DeviceConfig of {WINDLASS_API_VERSION}, or GpuConfig \
         or MigDeviceConfig of {NVIDIA_API_VERSION}"
    )]
    UnknownKind { origin: String, kind: String, version: String },
    #[error("{origin}: it applies to a {expected}, and request {request} got {device}, a {found}")]
    WrongKind {
        origin: String,
        expected: DeviceKind,
        request: String,
        device: String,
        found: DeviceKind,
    },
    #[error("{origin}: strategy {strategy} is impossible for {device}: {reason}")]
    Impossible { origin: String, strategy: &'static str, device: String, reason: &'static str },
}

#[derive(Debug)]
struct Parameters {
    /// Kind of devices that they apply to; `None` for all.
    kind: Option<DeviceKind>,
    sharing: Option<Sharing>,
}

/// The sharing that a configuration requests for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SharingRequest<'a> {
    pub(super) origin: &'a str,
    pub(super) sharing: Sharing,
}

/// Sharing of a device among the containers of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    /// Time slices of this length.
    TimeSlicing(Interval),
    Mps(MpsLimits),
}

const WINDLASS_API_VERSION: &str = "windlass.dev/v1alpha1";

const NVIDIA_API_VERSION: &str = "resource.nvidia.com/v1beta1";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TypeMeta {
    api_version: String,
    kind: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document<S> {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    sharing: Option<S>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WindlassSharing {
    strategy: Strategy,
    time_slicing: Option<TimeSlicing>,
    mps: Option<Mps>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NvidiaSharing {
    strategy: Strategy,
    time_slicing_config: Option<TimeSlicing>,
    mps_config: Option<NvidiaMps>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
enum Strategy {
    TimeSlicing,
    #[serde(rename = "MPS")]
    Mps,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct TimeSlicing {
    interval: Option<Interval>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Mps {
    active_thread_percentage: Option<u64>,
    pinned_memory_limit: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NvidiaMps {
    #[serde(rename = "defaultActiveThreadPercentage")]
    active_thread_percentage: Option<u64>,
    #[serde(rename = "defaultPinnedDeviceMemoryLimit")]
    pinned_memory_limit: Option<String>,
    #[serde(rename = "defaultPerDevicePinnedMemoryLimit")]
    per_device_limits: Option<Value>,
}

// === impl Configs ===

impl<'a> Configs<'a> {
    /// Parses all configurations of a claim.
    pub(crate) fn read(claim: &'a Claim) -> Result<Self, OpaqueError> {
        let read = |config: &'a OpaqueConfig| Ok((config, Parameters::read(config)?));
        claim.configs.iter().map(read).collect::<Result<_, _>>().map(Self)
    }

    /// Sharing requested for a device. A configuration without request names skips devices of another kind; one that
    /// names the device's request is an error then.
    pub(super) fn requested_sharing(
        &self,
        result: &AllocatedDevice,
        device: &Device,
    ) -> Result<Option<SharingRequest<'a>>, OpaqueError> {
        let mut last_applicable = None;
        for (config, parameters) in self.0.iter().filter(|(config, _)| config.applies_to(result)) {
            match parameters.kind {
                Some(expected) if expected != device.kind && config.names_request(result) => {
                    return Err(OpaqueError::WrongKind {
                        origin: config.origin.clone(),
                        expected,
                        request: result.request.clone(),
                        device: result.device.clone(),
                        found: device.kind,
                    });
                }
                Some(expected) if expected != device.kind => {}
                _ => last_applicable = Some((config, parameters)),
            }
        }
        Ok(last_applicable.and_then(|(config, parameters)| {
            let origin = &config.origin;
            parameters.sharing.map(|sharing| SharingRequest { origin, sharing })
        }))
    }
}

// === impl Parameters ===

impl Parameters {
    fn read(config: &OpaqueConfig) -> Result<Self, OpaqueError> {
        let (origin, parameters) = (&config.origin, &config.parameters);
        let type_meta: TypeMeta = parse(origin, parameters)?;
        let (kind, sharing) = match (type_meta.api_version.as_str(), type_meta.kind.as_str()) {
            (WINDLASS_API_VERSION, "DeviceConfig") => (None, parse_windlass(origin, parameters)?),
            (NVIDIA_API_VERSION, "GpuConfig") => {
                (Some(DeviceKind::Gpu), parse_nvidia(origin, parameters)?)
            }
            (NVIDIA_API_VERSION, "MigDeviceConfig") => {
                (Some(DeviceKind::Mig), parse_nvidia(origin, parameters)?)
            }
            _ => {
                let (kind, version) = (type_meta.kind, type_meta.api_version);
                return Err(OpaqueError::UnknownKind { origin: origin.clone(), kind, version });
            }
        };
        Ok(Self { kind, sharing })
    }
}

// === impl SharingRequest ===

impl SharingRequest<'_> {
    /// Error for a device that cannot be shared as requested.
    pub(super) fn impossible(&self, device: &str, reason: &'static str) -> OpaqueError {
        let strategy = match self.sharing {
            Sharing::TimeSlicing(Interval::Default) => "TimeSlicing",
            Sharing::TimeSlicing(_) => "TimeSlicing with an interval",
            Sharing::Mps(_) => "MPS",
        };
        let (origin, device) = (self.origin.to_owned(), device.to_owned());
        OpaqueError::Impossible { origin, strategy, device, reason }
    }
}

/// Fails if the driver does not accept these parameters.
pub fn check_parameters(parameters: Value) -> Result<(), OpaqueError> {
    let origin = "the parameters".to_owned();
    Parameters::read(&OpaqueConfig { origin, requests: Vec::new(), parameters }).map(drop)
}

/// Fails if the driver does not accept an allocated claim, as received from an API server.
pub fn check_claim_parameters(object: ResourceClaim, requested: &ClaimRef) -> Result<(), String> {
    let claim =
        Claim::read(object, requested, &DriverName::default()).map_err(|error| causes(&error))?;
    Configs::read(&claim).map(drop).map_err(|error| causes(&error))
}

fn parse_windlass(origin: &str, parameters: &Value) -> Result<Option<Sharing>, OpaqueError> {
    let document: Document<WindlassSharing> = parse(origin, parameters)?;
    let sharing = document.sharing.map(|parsed| {
        let mps =
            parsed.mps.map(|mps| limits(mps.active_thread_percentage, mps.pinned_memory_limit));
        sharing(parsed.strategy, parsed.time_slicing, mps)
    });
    sharing.transpose().map_err(|reason| unreadable_error(origin, reason))
}

fn parse_nvidia(origin: &str, parameters: &Value) -> Result<Option<Sharing>, OpaqueError> {
    let document: Document<NvidiaSharing> = parse(origin, parameters)?;
    let sharing = document.sharing.map(|parsed| {
        let mps = parsed.mps_config.map(NvidiaMps::limits);
        sharing(parsed.strategy, parsed.time_slicing_config, mps)
    });
    sharing.transpose().map_err(|reason| unreadable_error(origin, reason))
}

fn sharing(
    strategy: Strategy,
    slices: Option<TimeSlicing>,
    mps: Option<Result<MpsLimits, String>>,
) -> Result<Sharing, String> {
    let interval = slices.as_ref().and_then(|slices| slices.interval).unwrap_or_default();
    match (strategy, slices, mps) {
        (Strategy::TimeSlicing, _, Some(_)) => {
            Err("settings of MPS with strategy TimeSlicing".to_owned())
        }
        (Strategy::Mps, Some(_), _) => Err("settings of time slices with strategy MPS".to_owned()),
        (Strategy::TimeSlicing, _, None) => Ok(Sharing::TimeSlicing(interval)),
        (Strategy::Mps, None, limits) => Ok(Sharing::Mps(limits.transpose()?.unwrap_or_default())),
    }
}

impl NvidiaMps {
    fn limits(self) -> Result<MpsLimits, String> {
        if self.per_device_limits.is_some() {
            return Err(
                "defaultPerDevicePinnedMemoryLimit is not known: a program under MPS has one \
                        device, whose limit is defaultPinnedDeviceMemoryLimit"
                    .to_owned(),
            );
        }
        limits(self.active_thread_percentage, self.pinned_memory_limit)
    }
}

/// Limits of an MPS client, checked.
fn limits(threads: Option<u64>, memory: Option<String>) -> Result<MpsLimits, String> {
    const MIB: i64 = 1 << 20;
    let mebibytes = |text: String| {
        let bytes = Amount::parse(&text).map(Amount::ceil);
        let mebibytes = bytes.and_then(|bytes| u64::try_from(bytes / MIB).ok());
        mebibytes
            .filter(|mebibytes| *mebibytes > 0)
            .ok_or(format!("limit of memory {text:?}: write 10Gi, for example"))
    };
    match threads.filter(|percent| !(1..=100).contains(percent)) {
        Some(percent) => Err(format!("active threads {percent}: write 1 to 100 percent")),
        None => Ok(MpsLimits {
            thread_percent: threads,
            memory_mib: memory.map(mebibytes).transpose()?,
        }),
    }
}

fn parse<T: DeserializeOwned>(origin: &str, parameters: &Value) -> Result<T, OpaqueError> {
    T::deserialize(parameters).map_err(|error| unreadable_error(origin, error.to_string()))
}

fn unreadable_error(origin: &str, reason: impl Into<String>) -> OpaqueError {
    OpaqueError::Unreadable { origin: origin.to_owned(), reason: reason.into() }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;
    use windlass_core::device::SourceName;

    use super::*;
    use crate::claim::Access;

    fn device(kind: DeviceKind) -> Device {
        let id = "GPU-0".parse().expect("an id");
        Device::new(id, kind, SourceName::NVIDIA, Timestamp::UNIX_EPOCH)
    }

    fn result(request: &str) -> AllocatedDevice {
        let [request, pool, device] = [request, "n1/nvidia", "gpu-0"].map(ToOwned::to_owned);
        let consumed = std::collections::BTreeMap::new();
        AllocatedDevice { request, pool, device, access: Access::Regular, share: None, consumed }
    }

    /// Sharing of a GPU under these configurations, each with the requests that it names.
    fn check(request: &str, configs: &[(&[&str], Value)]) -> Result<Option<Sharing>, OpaqueError> {
        let [namespace, name, uid] = ["ns", "c", "u"].map(ToOwned::to_owned);
        let config =
            |(position, (requests, parameters)): (usize, &(&[&str], Value))| OpaqueConfig {
                origin: format!("{position}"),
                requests: requests.iter().map(|name| (*name).to_owned()).collect(),
                parameters: parameters.clone(),
            };
        let claim = Claim {
            pod_claim_name: name.clone(),
            reference: ClaimRef { namespace, name, uid },
            results: Vec::new(),
            configs: configs.iter().enumerate().map(config).collect(),
        };
        let (result, device) = (result(request), device(DeviceKind::Gpu));
        let configs = Configs::read(&claim)?;
        let requested = configs.requested_sharing(&result, &device)?;
        Ok(requested.map(|requested| requested.sharing))
    }

    fn shared(strategy: &str) -> Value {
        json!({"apiVersion": WINDLASS_API_VERSION, "kind": "DeviceConfig", "sharing": {"strategy": strategy}})
    }

    #[test]
    fn the_last_configuration_of_a_request_wins() {
        let (mps, slices) = (shared("MPS"), shared("TimeSlicing"));
        for (request, configs, is_time_sliced) in [
            ("a", vec![(&[][..], mps.clone()), (&[][..], slices.clone())], true),
            ("a", vec![(&[][..], slices.clone()), (&["a"][..], mps.clone())], false),
            ("b", vec![(&[][..], slices.clone()), (&["a"][..], mps.clone())], true),
            ("a/large", vec![(&["a"][..], mps.clone())], false),
            ("a/large", vec![(&["a/large"][..], mps.clone())], false),
            ("a/small", vec![(&["a/large"][..], mps.clone())], true),
        ] {
            let requested = check(request, &configs).expect("understood");
            let is_mps = matches!(requested, Some(Sharing::Mps(_)));
            assert_eq!(!is_mps, is_time_sliced, "{request}: {configs:?}");
        }
    }

    #[test]
    fn both_formats_have_the_intervals() {
        let requested = |parameters: Value| check("a", &[(&[], parameters)]);
        for (name, interval) in [
            ("Default", Interval::Default),
            ("Short", Interval::Short),
            ("Medium", Interval::Medium),
            ("Long", Interval::Long),
        ] {
            let windlass_format = json!({
                "apiVersion": WINDLASS_API_VERSION, "kind": "DeviceConfig",
                "sharing": {"strategy": "TimeSlicing", "timeSlicing": {"interval": name}},
            });
            let nvidia_format = json!({
                "apiVersion": NVIDIA_API_VERSION, "kind": "GpuConfig",
                "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": name}},
            });
            for parameters in [windlass_format, nvidia_format] {
                assert_eq!(
                    requested(parameters),
                    Ok(Some(Sharing::TimeSlicing(interval))),
                    "{name}"
                );
            }
        }
    }

    #[test]
    fn a_configuration_for_another_kind_is_skipped_unless_it_names_the_request() {
        let mig_config = json!({"apiVersion": NVIDIA_API_VERSION, "kind": "MigDeviceConfig"});
        assert_eq!(check("a", &[(&[], mig_config.clone())]), Ok(None));
        let error = check("a", &[(&["a"], mig_config)]).expect_err("named").to_string();
        assert_eq!(error, "0: it applies to a mig, and request a got gpu-0, a gpu");
    }

    #[test]
    fn an_invalid_configuration_is_refused_even_if_a_later_one_overrides_it() {
        for (parameters, expected) in [
            (json!({"kind": "DeviceConfig"}), "missing field `apiVersion`"),
            (
                json!({"apiVersion": WINDLASS_API_VERSION, "kind": "DeviceConfig", "x": 1}),
                "unknown field `x`",
            ),
            (shared("Turns"), "unknown variant `Turns`"),
            (
                json!({
                    "apiVersion": NVIDIA_API_VERSION, "kind": "GpuConfig",
                    "sharing": {"strategy": "MPS", "timeSlicingConfig": {}},
                }),
                "settings of time slices with strategy MPS",
            ),
            (
                json!({
                    "apiVersion": NVIDIA_API_VERSION, "kind": "GpuConfig",
                    "sharing": {
                        "strategy": "TimeSlicing",
                        "mpsConfig": {"defaultActiveThreadPercentage": 50},
                    },
                }),
                "settings of MPS with strategy TimeSlicing",
            ),
        ] {
            let override_config = (&[][..], shared("TimeSlicing"));
            let error =
                check("a", &[(&[], parameters), override_config]).expect_err(expected).to_string();
            assert!(error.starts_with("0: ") && error.contains(expected), "{error}");
        }
    }
}
