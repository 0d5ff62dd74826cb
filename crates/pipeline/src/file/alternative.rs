//! Parser of a stage's alternatives: an extended resource, a device of a class, or CPUs alone.

use schemars::JsonSchema;
use serde::Deserialize;
use windlass_config::{Diagnostic, document::Spanned};
use windlass_core::{name, resource::ResourceName};

use super::Diagnostics;
use crate::{
    capacity::Capacity,
    pipeline::{Alternative, DeviceRequirement},
    quantity::{Bytes, Seconds},
};

/// Device that a stage can run on: an extended resource, a device of a class, or CPUs alone.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct AlternativeEntry {
    /// Extended resource; each replica requests one: coral.ai/tpu.
    resource: Option<String>,
    /// DeviceClass; each replica claims one device.
    device_class: Option<String>,
    /// CEL expression over the claimed device.
    #[serde(rename = "match")]
    #[schemars(with = "Option<String>")]
    expression: Option<Spanned<String>>,
    /// Command of the container on this device, instead of the stage's.
    #[serde(default)]
    command: Vec<String>,
    /// CPUs that a replica requests [default: 1 without a device, 0.1 with one].
    cpus: Option<f64>,
    /// Memory that a replica requests [default: none].
    #[serde(default)]
    memory: Bytes,
    /// Processing time of one item.
    time: Seconds,
    /// Fixed time per batch, in addition to the time of its items.
    #[serde(default)]
    batch_time: Seconds,
    /// Standard deviation of the time divided by its mean: 0 for a constant time, 1 for an exponential one.
    #[serde(default)]
    variation: f64,
}

/// Lower limit of an item's time in seconds; the rate is its reciprocal.
const MIN_TIME: f64 = 1e-6;

// === impl AlternativeEntry ===

impl AlternativeEntry {
    pub(super) fn validate(mut self, line: u64, errors: &mut Diagnostics) -> Alternative {
        let mut report = |line, text: String| errors.push(Diagnostic::new(line, text));
        if self.time.0 < MIN_TIME {
            let text = format!("time: {}: write the time of one item, more than 0", self.time);
            report(line, text);
        }
        if !(0.0..=10.0).contains(&self.variation) {
            report(line, format!("variation: {}: write a number from 0 to 10", self.variation));
        }
        if let Some(cpus) = self.cpus
            && !(cpus > 0.0 && cpus <= 1024.0)
        {
            report(line, format!("cpus: {cpus}: write a number of CPUs, more than 0"));
        }
        if let (Some(expression), None) = (&self.expression, &self.device_class) {
            let text = "match filters the devices of a class: write deviceClass too";
            report(expression.line, text.to_owned());
        }
        let default_cpus =
            if self.resource.is_some() || self.device_class.is_some() { 0.1 } else { 1.0 };
        let device = self.device(line, errors);
        Alternative {
            device,
            command: self.command,
            request: Capacity { cpus: self.cpus.unwrap_or(default_cpus), memory: self.memory },
            time: self.time,
            batch_time: self.batch_time,
            variation: self.variation,
        }
    }

    /// Validates the device.
    fn device(&mut self, line: u64, errors: &mut Diagnostics) -> DeviceRequirement {
        let mut report = |line, text: String| errors.push(Diagnostic::new(line, text));
        match (self.resource.take(), self.device_class.take()) {
            (Some(resource), None) => {
                if let Err(error) = resource.parse::<ResourceName>() {
                    report(line, format!("resource: {error}"));
                }
                DeviceRequirement::Resource(resource)
            }
            (None, None) => DeviceRequirement::CpuOnly,
            (None, Some(class)) => {
                if !name::is_subdomain(&class) {
                    let text =
                        "the name of a DeviceClass has lower-case letters, digits, dashes and dots";
                    report(line, format!("deviceClass: {class:?}: {text}"));
                }
                let (line, text) = self
                    .expression
                    .take()
                    .map_or((line, String::new()), |text| (text.line, text.value));
                let parsed = (!text.is_empty()).then(|| text.parse());
                let expression = parsed.and_then(|parsed: Result<_, _>| match parsed {
                    Ok(expression) => Some(expression),
                    Err(error) => {
                        report(line, format!("match: {error}"));
                        None
                    }
                });
                DeviceRequirement::Claim { class, expression, text }
            }
            (Some(_), Some(_)) => {
                report(line, "resource and deviceClass exclude each other: write one".to_owned());
                DeviceRequirement::CpuOnly
            }
        }
    }
}
