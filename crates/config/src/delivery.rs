//! Delivery of devices to containers: strategies that name devices to the container runtime, hooks, additional files,
//! IMEX channels.

use std::{collections::BTreeSet, fmt, path::PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::{
    document::OneOrMany,
    scalar::{Text, displayed},
};

/// Delivery of devices to containers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Delivery {
    /// Strategies that name a container's devices to the container runtime. Several may be combined.
    #[serde(rename = "deviceList", with = "OneOrMany::<DeviceListStrategy>")]
    pub strategies: BTreeSet<DeviceListStrategy>,
    /// Form of device names for the container runtime.
    #[serde(rename = "deviceIds")]
    pub ids: DeviceIdStrategy,
    /// Passes device nodes through the kubelet as well, for its static CPU manager.
    pub pass_device_specs: bool,
    /// Prefix of the keys of CDI annotations.
    #[serde(rename = "cdiAnnotationPrefix", with = "Text::<AnnotationPrefix>")]
    pub annotation_prefix: AnnotationPrefix,
    /// Hooks of the NVIDIA container toolkit in CDI documents.
    pub hooks: Hooks,
    /// Additional nodes and files for every container of an NVIDIA resource.
    pub features: BTreeSet<Feature>,
    /// Channels for memory that is exported between nodes.
    pub imex: Imex,
}

/// Strategy that names a container's devices to the container runtime. The words are NVIDIA's.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceListStrategy {
    /// `cdi-cri`: CDI names in the kubelet's message to the runtime.
    #[serde(alias = "cdi")]
    CdiCri,
    /// `cdi-annotations`: CDI names in annotations, for a kubelet that does not pass names on.
    CdiAnnotations,
    /// `envvar`: `NVIDIA_VISIBLE_DEVICES`, which NVIDIA's container runtime resolves.
    Envvar,
    /// `volume-mounts`: mounts of `/dev/null` at paths that name the devices. NVIDIA's container runtime
    /// resolves them, and an unprivileged pod cannot forge them.
    VolumeMounts,
}

/// Form of device names for the container runtime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DeviceIdStrategy {
    /// By UUID.
    #[default]
    Uuid,
    /// By position: `0`, and `0:1` for a MIG instance.
    Index,
}

/// Additional nodes and files for every container of an NVIDIA resource.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Feature {
    /// `GPUDirect` Storage: `/dev/nvidia-fs*`, `/run/udev`, `/etc/cufile.json`.
    Gds,
    /// Mellanox OFED: `/dev/infiniband/uverbs*`, `/dev/infiniband/rdma_cm`.
    Mofed,
    /// `GDRCopy`: `/dev/gdrdrv`.
    Gdrcopy,
}

/// Hooks of the NVIDIA container toolkit in CDI documents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Hooks {
    /// Path of the toolkit's program on the host. Default: searched in the folders that packages use.
    pub program: Option<PathBuf>,
    /// Disabled hooks, by the toolkit's names; `all` disables every hook.
    pub disabled: BTreeSet<String>,
}

/// Channels for memory that is exported between nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Imex {
    /// Channels of every container.
    #[serde(deserialize_with = "channels")]
    #[schemars(inner(range(min = 0, max = IMEX_CHANNELS - 1)))]
    pub channels: BTreeSet<u32>,
    /// Withholds GPUs while a channel is missing.
    pub required: bool,
}

/// The driver's default number of channels (`NVreg_ImexChannelCount`).
const IMEX_CHANNELS: u32 = 2048;

/// Prefix of the keys of CDI annotations, `cdi.k8s.io/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnotationPrefix(String);

/// Text that is not a prefix of annotation keys.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} cannot begin an annotation's key: write a domain and a slash, such as cdi.k8s.io/")]
pub struct InvalidPrefix(String);

// === impl Feature ===

impl Feature {
    /// Every feature.
    pub const ALL: &[Self] = &[Self::Gds, Self::Mofed, Self::Gdrcopy];
}

// === impl Delivery ===

impl Default for Delivery {
    fn default() -> Self {
        Self {
            strategies: BTreeSet::from([DeviceListStrategy::CdiCri]),
            ids: DeviceIdStrategy::default(),
            pass_device_specs: false,
            annotation_prefix: AnnotationPrefix::default(),
            hooks: Hooks::default(),
            features: BTreeSet::new(),
            imex: Imex::default(),
        }
    }
}

impl Delivery {
    /// True if any strategy needs CDI documents.
    pub fn uses_cdi(&self) -> bool {
        self.strategies.contains(&DeviceListStrategy::CdiCri)
            || self.strategies.contains(&DeviceListStrategy::CdiAnnotations)
    }
}

// === Deserialization of IMEX channels ===

fn channels<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeSet<u32>, D::Error> {
    /// Number of a channel. Each number is checked on its own, so that an error has its line.
    #[derive(Deserialize)]
    #[serde(try_from = "i64")]
    struct Channel(u32);

    impl TryFrom<i64> for Channel {
        type Error = String;

        fn try_from(number: i64) -> Result<Self, String> {
            let channel = u32::try_from(number).ok().filter(|number| *number < IMEX_CHANNELS);
            channel.map(Self).ok_or_else(|| {
                let last = IMEX_CHANNELS - 1;
                format!("IMEX channel {number} does not exist: write 0 to {last}")
            })
        }
    }

    let channels = Vec::deserialize(deserializer)?;
    Ok(channels.into_iter().map(|Channel(number)| number).collect())
}

// === impl AnnotationPrefix ===

displayed! {
    AnnotationPrefix: { "type": "string", "pattern": "^[a-z0-9.-]+/$" }
}

impl fmt::Display for AnnotationPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl AnnotationPrefix {
    /// The prefix as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for AnnotationPrefix {
    /// The prefix that runtimes look for (CDI specification, "Kubernetes").
    fn default() -> Self {
        Self("cdi.k8s.io/".to_owned())
    }
}

impl std::str::FromStr for AnnotationPrefix {
    type Err = InvalidPrefix;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_label = |label: &str| {
            !label.is_empty()
                && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        };
        let domain = text.strip_suffix('/').filter(|domain| domain.split('.').all(is_label));
        domain.map(|_| Self(text.to_owned())).ok_or_else(|| InvalidPrefix(text.to_owned()))
    }
}
