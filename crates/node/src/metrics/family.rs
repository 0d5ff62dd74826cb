//! Metric family that a collector writes from a snapshot.

use std::fmt;

use prometheus_client::{
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet},
    metrics::MetricType,
    registry::Unit,
};
use windlass_host::counters::Labels;

#[derive(Clone, Copy)]
pub(super) struct FamilyDescriptor {
    /// Name without prefix, unit and suffix.
    pub(super) name: &'static str,
    pub(super) unit: Option<&'static str>,
    pub(super) help: &'static str,
}

/// Sample value, written as an integer or a float.
#[derive(Clone, Copy)]
pub(super) enum Value {
    Integer(u64),
    Float(f64),
}

// === impl FamilyDescriptor ===

impl FamilyDescriptor {
    pub(super) const fn new(name: &'static str, help: &'static str) -> Self {
        Self { name, unit: None, help }
    }

    pub(super) const fn with_unit(self, unit: &'static str) -> Self {
        Self { unit: Some(unit), ..self }
    }

    /// Writes a gauge family; omits one without lines.
    pub(super) fn gauges(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        lines: impl IntoIterator<Item = (Labels, Value)>,
    ) -> fmt::Result {
        self.write(encoder, MetricType::Gauge, lines)
    }

    pub(super) fn counters(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        lines: impl IntoIterator<Item = (Labels, Value)>,
    ) -> fmt::Result {
        self.write(encoder, MetricType::Counter, lines)
    }

    pub(super) fn infos(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        lines: impl IntoIterator<Item = Labels>,
    ) -> fmt::Result {
        let lines = lines.into_iter().map(|labels| (labels, Value::Integer(1)));
        self.write(encoder, MetricType::Info, lines)
    }

    pub(super) fn write(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        kind: MetricType,
        lines: impl IntoIterator<Item = (Labels, Value)>,
    ) -> fmt::Result {
        let mut lines = lines.into_iter().peekable();
        if lines.peek().is_none() {
            return Ok(());
        }
        let unit = self.unit.map(|unit| Unit::Other(unit.to_owned()));
        // The library appends a full stop to the help of its own families.
        let help = format!("{}.", self.help);
        let mut family = encoder.encode_descriptor(self.name, &help, unit.as_ref(), kind)?;
        for (labels, value) in lines {
            match (kind, labels.as_slice()) {
                (MetricType::Info, _) => family.encode_info(&labels),
                (_, []) => value.encode(kind, &mut family),
                _ => value.encode(kind, &mut family.encode_family(&labels)?),
            }?;
        }
        Ok(())
    }
}

// === impl Value ===

impl Value {
    fn encode(self, kind: MetricType, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
        match (kind, self) {
            (MetricType::Counter, Self::Integer(value)) => {
                encoder.encode_counter::<NoLabelSet, _, u64>(&value, None)
            }
            (MetricType::Counter, Self::Float(value)) => {
                encoder.encode_counter::<NoLabelSet, _, f64>(&value, None)
            }
            (_, Self::Integer(value)) => encoder.encode_gauge(&value),
            (_, Self::Float(value)) => encoder.encode_gauge(&value),
        }
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Integer(flag.into())
    }
}
