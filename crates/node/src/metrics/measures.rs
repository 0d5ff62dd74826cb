//! Telemetry as metrics: a table with one row per metric family, or per value of the family's label.

use std::fmt;

use prometheus_client::{encoding::DescriptorEncoder, metrics::MetricType};
use windlass_core::telemetry::{NvLinkSample, PortSample, RemappedRows, Sample, ThrottleReason};
use windlass_host::counters::Labels;

use super::family::{FamilyDescriptor, Value};

/// Row of a metric family. It yields one line per device or port.
struct Measure<S> {
    family: FamilyDescriptor,
    kind: MetricType,
    /// Label and value of this row, in a family with several rows.
    label: Option<(&'static str, &'static str)>,
    value: fn(&S) -> Option<Value>,
}

const THROTTLED: FamilyDescriptor =
    FamilyDescriptor::new("device_throttled", "1 while the clocks are reduced for this reason");
const ECC_ERRORS: FamilyDescriptor = FamilyDescriptor::new(
    "device_ecc_errors",
    "Memory errors that ECC found since the driver was loaded",
);
const REMAPPED: FamilyDescriptor = FamilyDescriptor::new(
    "device_remapped_rows",
    "Memory rows replaced by spare ones, by type of error",
);
const REMAPPING: FamilyDescriptor = FamilyDescriptor::new(
    "device_row_remapping",
    "1 while the remapping of a memory row is pending, or has failed",
);
const NVLINKS: FamilyDescriptor = FamilyDescriptor::new("device_nvlinks", "NVLinks by state");
const NVLINK_ERRORS: FamilyDescriptor = FamilyDescriptor::new(
    "device_nvlink_errors",
    "Errors of all NVLinks since the driver was loaded",
);

/// Rows of one family are adjacent.
const MEASURES: &[Measure<Sample>] = &[
    gauge(
        FamilyDescriptor::new("device_memory", "Size of the device's memory").with_unit("bytes"),
        |sample| sample.memory_bytes.map(Value::Integer),
    ),
    gauge(
        FamilyDescriptor::new("device_memory_used", "Allocated memory").with_unit("bytes"),
        |sample| sample.memory_used_bytes.map(Value::Integer),
    ),
    gauge(
        FamilyDescriptor::new("device_utilization", "Share of time in which a kernel ran")
            .with_unit("ratio"),
        |sample| sample.compute_percent.map(ratio),
    ),
    gauge(
        FamilyDescriptor::new(
            "device_memory_utilization",
            "Share of time in which memory was read or written",
        )
        .with_unit("ratio"),
        |sample| sample.memory_percent.map(ratio),
    ),
    gauge(
        FamilyDescriptor::new("device_temperature", "Temperature of the chip").with_unit("celsius"),
        |sample| sample.temperature_celsius.map(integer),
    ),
    gauge(
        FamilyDescriptor::new("device_memory_temperature", "Temperature of the memory")
            .with_unit("celsius"),
        |sample| sample.memory_temperature_celsius.map(integer),
    ),
    gauge(
        FamilyDescriptor::new("device_power", "Power that the board draws").with_unit("watts"),
        |sample| sample.power_milliwatts.map(thousandths),
    ),
    gauge(
        FamilyDescriptor::new("device_power_limit", "Power limit in force").with_unit("watts"),
        |sample| sample.power_limit_milliwatts.map(thousandths),
    ),
    gauge(
        FamilyDescriptor::new("device_clock", "Clock of the compute units").with_unit("hertz"),
        |sample| sample.compute_clock_hertz.map(Value::Integer),
    ),
    gauge(
        FamilyDescriptor::new("device_memory_clock", "Clock of the memory").with_unit("hertz"),
        |sample| sample.memory_clock_hertz.map(Value::Integer),
    ),
    gauge(THROTTLED, |sample: &Sample| throttled(sample, ThrottleReason::HwSlowdown))
        .with_label("reason", "hw_slowdown"),
    gauge(THROTTLED, |sample: &Sample| throttled(sample, ThrottleReason::HwThermal))
        .with_label("reason", "hw_thermal"),
    gauge(THROTTLED, |sample: &Sample| throttled(sample, ThrottleReason::SwThermal))
        .with_label("reason", "sw_thermal"),
    gauge(THROTTLED, |sample: &Sample| throttled(sample, ThrottleReason::PowerCap))
        .with_label("reason", "power_cap"),
    gauge(THROTTLED, |sample: &Sample| throttled(sample, ThrottleReason::PowerBrake))
        .with_label("reason", "power_brake"),
    gauge(
        FamilyDescriptor::new("device_pcie_link_generation", "PCIe generation of the link now"),
        |sample| sample.pcie_generation.map(integer),
    ),
    gauge(
        FamilyDescriptor::new("device_pcie_link_width", "Lanes of the PCIe link now"),
        |sample| sample.pcie_width.map(integer),
    ),
    gauge(REMAPPING, |sample: &Sample| rows(sample, |rows| rows.pending.into()))
        .with_label("state", "pending"),
    gauge(REMAPPING, |sample: &Sample| rows(sample, |rows| rows.failed.into()))
        .with_label("state", "failed"),
    gauge(NVLINKS, |sample: &Sample| nvlinks(sample, |links| Some(links.up as u64)))
        .with_label("state", "up"),
    gauge(NVLINKS, |sample: &Sample| nvlinks(sample, |links| Some(links.down as u64)))
        .with_label("state", "down"),
    gauge(
        FamilyDescriptor::new("device_sampled_timestamp", "Time of the latest sample")
            .with_unit("seconds"),
        |sample| u64::try_from(sample.read_at.as_second()).ok().map(Value::Integer),
    ),
    counter(
        FamilyDescriptor::new("device_energy", "Energy drawn since the driver was loaded")
            .with_unit("joules"),
        |sample| sample.energy_millijoules.map(thousandths),
    ),
    counter(
        FamilyDescriptor::new(
            "device_pcie_replays",
            "PCIe packets sent again since the driver was loaded",
        ),
        |sample| sample.pcie_replays.map(Value::Integer),
    ),
    counter(ECC_ERRORS, |sample: &Sample| sample.corrected_errors.map(Value::Integer))
        .with_label("type", "corrected"),
    counter(ECC_ERRORS, |sample: &Sample| sample.uncorrected_errors.map(Value::Integer))
        .with_label("type", "uncorrected"),
    counter(REMAPPED, |sample: &Sample| rows(sample, |rows| integer(rows.corrected)))
        .with_label("type", "corrected"),
    counter(REMAPPED, |sample: &Sample| rows(sample, |rows| integer(rows.uncorrected)))
        .with_label("type", "uncorrected"),
    counter(
        FamilyDescriptor::new("device_nvlink_transmitted", "Data sent over all NVLinks")
            .with_unit("bytes"),
        |sample| nvlinks(sample, |links| links.sent_bytes),
    ),
    counter(
        FamilyDescriptor::new("device_nvlink_received", "Data received over all NVLinks")
            .with_unit("bytes"),
        |sample| nvlinks(sample, |links| links.received_bytes),
    ),
    counter(NVLINK_ERRORS, |sample: &Sample| nvlinks(sample, |links| links.crc_flit_errors))
        .with_label("type", "crc_flit"),
    counter(NVLINK_ERRORS, |sample: &Sample| nvlinks(sample, |links| links.crc_data_errors))
        .with_label("type", "crc_data"),
    counter(NVLINK_ERRORS, |sample: &Sample| nvlinks(sample, |links| links.replays))
        .with_label("type", "replay"),
    counter(NVLINK_ERRORS, |sample: &Sample| nvlinks(sample, |links| links.recoveries))
        .with_label("type", "recovery"),
];

const PORT_ERRORS: FamilyDescriptor = FamilyDescriptor::new(
    "device_port_errors",
    "Errors of an RDMA port since its driver was loaded",
);

/// Rows of one family are adjacent.
const PORT_MEASURES: &[Measure<PortSample>] = &[
    gauge(
        FamilyDescriptor::new("device_port_up", "1 if traffic can flow through an RDMA port"),
        |port| port.is_active.map(Value::from),
    ),
    counter(
        FamilyDescriptor::new("device_port_received", "RDMA data received").with_unit("bytes"),
        |port| port.received_bytes.map(Value::Integer),
    ),
    counter(
        FamilyDescriptor::new("device_port_transmitted", "RDMA data sent").with_unit("bytes"),
        |port| port.sent_bytes.map(Value::Integer),
    ),
    counter(PORT_ERRORS, |port: &PortSample| port.receive_errors.map(Value::Integer))
        .with_label("type", "receive"),
    counter(PORT_ERRORS, |port: &PortSample| port.send_discards.map(Value::Integer))
        .with_label("type", "transmit_discard"),
    counter(PORT_ERRORS, |port: &PortSample| port.symbol_errors.map(Value::Integer))
        .with_label("type", "symbol"),
    counter(PORT_ERRORS, |port: &PortSample| port.link_recoveries.map(Value::Integer))
        .with_label("type", "link_recovery"),
    counter(PORT_ERRORS, |port: &PortSample| port.link_downs.map(Value::Integer))
        .with_label("type", "link_down"),
];

/// Writes all families. Each sample has the labels of its device.
pub(super) fn write(
    encoder: &mut DescriptorEncoder<'_>,
    samples: &[(Labels, Sample)],
) -> fmt::Result {
    let devices: Vec<_> = samples.iter().map(|(labels, sample)| (labels.clone(), sample)).collect();
    families(encoder, MEASURES, &devices)?;
    let ports = samples.iter().flat_map(|(device, sample)| {
        sample.ports.iter().map(move |port| {
            let port_label = ("port", port.port.clone());
            (device.iter().cloned().chain([port_label]).collect::<Labels>(), port)
        })
    });
    families(encoder, PORT_MEASURES, &ports.collect::<Vec<_>>())
}

fn families<S>(
    encoder: &mut DescriptorEncoder<'_>,
    measures: &[Measure<S>],
    samples: &[(Labels, &S)],
) -> fmt::Result {
    for family in measures.chunk_by(|one, next| one.family.name == next.family.name) {
        let lines = samples.iter().flat_map(|(labels, sample)| {
            family.iter().filter_map(move |row| Some((row.labels(labels), (row.value)(sample)?)))
        });
        family[0].family.write(encoder, family[0].kind, lines)?;
    }
    Ok(())
}

// === impl Measure ===

const fn gauge<S>(family: FamilyDescriptor, value: fn(&S) -> Option<Value>) -> Measure<S> {
    Measure { family, kind: MetricType::Gauge, label: None, value }
}

const fn counter<S>(family: FamilyDescriptor, value: fn(&S) -> Option<Value>) -> Measure<S> {
    Measure { family, kind: MetricType::Counter, label: None, value }
}

impl<S> Measure<S> {
    const fn with_label(self, label: &'static str, value: &'static str) -> Self {
        Self { label: Some((label, value)), ..self }
    }

    fn labels(&self, device: &Labels) -> Labels {
        let own_label = self.label.map(|(label, value)| (label, value.to_owned()));
        device.iter().cloned().chain(own_label).collect()
    }
}

fn throttled(sample: &Sample, reason: ThrottleReason) -> Option<Value> {
    Some(sample.throttled.as_ref()?.contains(&reason).into())
}

fn rows(sample: &Sample, value: fn(RemappedRows) -> Value) -> Option<Value> {
    sample.remapped_rows.map(value)
}

fn nvlinks(sample: &Sample, value: fn(NvLinkSample) -> Option<u64>) -> Option<Value> {
    sample.nvlinks.and_then(value).map(Value::Integer)
}

fn integer(number: u32) -> Value {
    Value::Integer(number.into())
}

fn ratio(percent: u32) -> Value {
    Value::Float(f64::from(percent) / 100.0)
}

#[expect(clippy::cast_precision_loss, reason = "53 bits of millijoules last for 280 years at 1 kW")]
fn thousandths(number: u64) -> Value {
    Value::Float(number as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn rows_of_a_family_are_adjacent_of_one_type_and_differ_by_label() {
        check(MEASURES);
        check(PORT_MEASURES);
    }

    fn check<S>(measures: &[Measure<S>]) {
        let families: Vec<_> =
            measures.chunk_by(|one, next| one.family.name == next.family.name).collect();
        let names: BTreeSet<_> = families.iter().map(|family| family[0].family.name).collect();
        assert_eq!(names.len(), families.len());
        for family in families {
            let labels: BTreeSet<_> = family.iter().map(|row| row.label).collect();
            assert_eq!(labels.len(), family.len(), "{}", family[0].family.name);
            let kind = family[0].kind.as_str();
            assert!(family.iter().all(|row| row.kind.as_str() == kind));
        }
    }

    #[test]
    fn an_empty_sample_has_only_its_time() {
        let sample = Sample::default();
        let lines = MEASURES.iter().filter(|row| (row.value)(&sample).is_some());
        let names: Vec<_> = lines.map(|row| row.family.name).collect();
        assert_eq!(names, ["device_sampled_timestamp"]);
    }
}
