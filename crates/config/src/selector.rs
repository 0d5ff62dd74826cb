//! Selectors of devices: kind, source, index, ids, MIG profiles, CEL expression.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use windlass_core::{
    device::{Device, DeviceId, DeviceKind, SourceName},
    selector::{DeviceExpression, EvaluationError},
};

use crate::{
    mig_profile,
    scalar::{Scalar, Text, is_default},
};

/// Selects devices of one kind, or of one source, that match all its keys; an absent key matches all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Selector {
    /// Kind of the devices. Optional if `source` is present.
    #[serde(with = "Text::<DeviceKind>", skip_serializing_if = "is_default")]
    pub kind: Option<DeviceKind>,
    /// Source of the devices: a built-in one, or one of this file. By default, GPUs and MIG instances are NVIDIA's, so
    /// that a rule for `nvidia.com/gpu` does not take integrated graphics; other kinds are of any source.
    #[serde(with = "Text::<SourceName>", skip_serializing_if = "is_default")]
    pub source: Option<SourceName>,
    /// Positions as `windlass devices` shows them. A MIG instance has the position of its GPU.
    #[serde(skip_serializing_if = "is_default")]
    pub index: BTreeSet<u32>,
    /// Device ids.
    #[serde(deserialize_with = "texts::<_, DeviceId>", skip_serializing_if = "is_default")]
    #[schemars(with = "BTreeSet<Text<DeviceId>>")]
    pub ids: BTreeSet<String>,
    /// MIG profiles, `1g.10gb`.
    #[serde(
        rename = "profiles",
        deserialize_with = "texts::<_, MigProfile>",
        skip_serializing_if = "is_default"
    )]
    #[schemars(with = "BTreeSet<Text<MigProfile>>")]
    pub mig_profiles: BTreeSet<String>,
    /// CEL expression over the device's attributes and capacities, as in DRA.
    #[serde(
        rename = "match",
        with = "Text::<DeviceExpression>",
        skip_serializing_if = "Option::is_none"
    )]
    pub expression: Option<DeviceExpression>,
}

/// The name of a MIG profile that hardware could have.
struct MigProfile(String);

// === impl Selector ===

impl Selector {
    /// All devices of a kind; for GPUs and MIG instances, all of NVIDIA's.
    pub fn all(kind: DeviceKind) -> Self {
        Self { kind: Some(kind), ..Self::default() }
    }

    /// All devices of a source.
    pub fn of_source(source: SourceName) -> Self {
        Self { source: Some(source), ..Self::default() }
    }

    /// The source, named or implied by the kind.
    pub fn source(&self) -> Option<&SourceName> {
        self.source.as_ref().or_else(|| self.kind?.facts().default_source.as_ref())
    }

    /// True for a device of the selector's kind and source.
    pub fn matches_kind(&self, device: &Device) -> bool {
        self.kind.is_none_or(|kind| kind == device.kind)
            && self.source().is_none_or(|source| *source == device.source)
    }

    /// Description of the selected devices, for messages.
    pub(crate) fn description(&self) -> String {
        match (self.kind, self.source()) {
            (Some(kind), source) if source == kind.facts().default_source.as_ref() => {
                kind.to_string()
            }
            (Some(kind), Some(source)) => format!("{kind} of {source}"),
            (Some(kind), None) => kind.to_string(),
            (None, Some(source)) => format!("device of {source}"),
            (None, None) => "device".to_owned(),
        }
    }

    /// True for a selected device. The expression is evaluated last, for devices that match all other keys.
    pub fn matches(
        &self,
        device: &Device,
        mig_profile: Option<&str>,
    ) -> Result<bool, EvaluationError> {
        let matches_keys = self.matches_kind(device)
            && (self.index.is_empty() || self.index.contains(&device.index))
            && (self.ids.is_empty() || self.ids.contains(device.id.as_str()))
            && (self.mig_profiles.is_empty()
                || mig_profile.is_some_and(|profile| self.mig_profiles.contains(profile)));
        match &self.expression {
            Some(expression) if matches_keys => expression.matches(device),
            _ => Ok(matches_keys),
        }
    }

    /// True if this selector certainly selects every device that `other` selects. Expressions are compared as text.
    pub fn covers(&self, other: &Self) -> bool {
        fn is_covered<T: Ord>(wider: &BTreeSet<T>, narrower: &BTreeSet<T>) -> bool {
            wider.is_empty() || (!narrower.is_empty() && narrower.is_subset(wider))
        }
        self.kind.is_none_or(|kind| Some(kind) == other.kind)
            && (self.source().is_none() || self.source() == other.source())
            && is_covered(&self.index, &other.index)
            && is_covered(&self.ids, &other.ids)
            && is_covered(&self.mig_profiles, &other.mig_profiles)
            && (self.expression.is_none() || self.expression == other.expression)
    }
}

/// Reads a list of texts, each a valid scalar of type `T`.
fn texts<'de, D, T>(deserializer: D) -> Result<BTreeSet<String>, D::Error>
where
    D: Deserializer<'de>,
    T: Scalar,
{
    let texts = Vec::<Text<T>>::deserialize(deserializer)?;
    Ok(texts.iter().map(|Text(value)| value.write()).collect())
}

// === impl MigProfile ===

impl Scalar for MigProfile {
    fn schema() -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "pattern": "^([1-8]c\\.)?[1-8]g\\.[1-9][0-9]{0,3}gb([+-][A-Za-z0-9.,+-]+)?$",
            "examples": ["1g.10gb", "1g.10gb+me"],
        })
    }

    fn read(text: &str) -> Result<Self, String> {
        let error = || {
            format!(
                "{text:?} is not a MIG profile of any GPU: write it as `nvidia-smi mig -lgip` \
                 does, such as 1g.10gb or 1g.10gb+me, with 1 to 8 slices"
            )
        };
        mig_profile::is_possible(text).then(|| Self(text.to_owned())).ok_or_else(error)
    }

    fn write(&self) -> String {
        self.0.clone()
    }
}
