//! The alternatives of a stage: a resource, a device of a class, or CPUs alone.

use schemars::JsonSchema;
use serde::Deserialize;
use windlass_config::{Diagnostic, document::Spanned};
use windlass_core::{name, resource::ResourceName};

use super::Found;
use crate::{
    capacity::Capacity,
    pipeline::{Alternative, Wanted},
    quantity::{Bytes, Seconds},
};

/// Something that a stage can run on: a resource, a device of a class, or CPUs alone.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct AlternativeEntry {
    /// Extended resource, of which a replica takes one: coral.ai/tpu.
    resource: Option<String>,
    /// DeviceClass, of which a replica claims one device.
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
    /// Time of one item, as measured or stated.
    time: Seconds,
    /// Time that each batch takes besides.
    #[serde(default)]
    batch_time: Seconds,
    /// Standard deviation of the time over its mean: 0 for a constant time, 1 for an exponential one.
    #[serde(default)]
    variation: f64,
}

/// The time of a stage without a batch is at least this: nothing takes no time.
const SHORTEST: f64 = 1e-6;

// === impl AlternativeEntry ===

impl AlternativeEntry {
    pub(super) fn checked(mut self, line: u64, found: &mut Found) -> Alternative {
        let mut wrong = |line, text: String| found.push(Diagnostic::new(line, text));
        if self.time.0 < SHORTEST {
            let text = format!("time: {}: write how long an item takes, more than 0", self.time);
            wrong(line, text);
        }
        if !(0.0..=10.0).contains(&self.variation) {
            wrong(line, format!("variation: {}: write a number from 0 to 10", self.variation));
        }
        if let Some(cpus) = self.cpus
            && !(cpus > 0.0 && cpus <= 1024.0)
        {
            wrong(line, format!("cpus: {cpus}: write a number of CPUs, more than 0"));
        }
        if let (Some(expression), None) = (&self.expression, &self.device_class) {
            let text = "match selects among the devices of a class: write deviceClass too";
            wrong(expression.line, text.to_owned());
        }
        let usual_cpus =
            if self.resource.is_some() || self.device_class.is_some() { 0.1 } else { 1.0 };
        let device = self.device(line, found);
        Alternative {
            device,
            command: self.command,
            request: Capacity { cpus: self.cpus.unwrap_or(usual_cpus), memory: self.memory },
            time: self.time,
            batch_time: self.batch_time,
            variation: self.variation,
        }
    }

    /// The device that is written down.
    fn device(&mut self, line: u64, found: &mut Found) -> Wanted {
        let mut wrong = |line, text: String| found.push(Diagnostic::new(line, text));
        match (self.resource.take(), self.device_class.take()) {
            (Some(resource), None) => {
                if let Err(error) = resource.parse::<ResourceName>() {
                    wrong(line, format!("resource: {error}"));
                }
                Wanted::Resource(resource)
            }
            (None, None) => Wanted::Cpu,
            (None, Some(class)) => {
                if !name::is_subdomain(&class) {
                    let text =
                        "the name of a DeviceClass has lower-case letters, digits, dashes and dots";
                    wrong(line, format!("deviceClass: {class:?}: {text}"));
                }
                let (line, text) = self
                    .expression
                    .take()
                    .map_or((line, String::new()), |text| (text.line, text.value));
                let parsed = (!text.is_empty()).then(|| text.parse());
                let expression = parsed.and_then(|parsed: Result<_, _>| match parsed {
                    Ok(expression) => Some(expression),
                    Err(error) => {
                        wrong(line, format!("match: {error}"));
                        None
                    }
                });
                Wanted::Claim { class, expression, text }
            }
            (Some(_), Some(_)) => {
                wrong(
                    line,
                    "resource and deviceClass are two ways to one device: write one".to_owned(),
                );
                Wanted::Cpu
            }
        }
    }
}
