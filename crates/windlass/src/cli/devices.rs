//! Command lines of `windlass devices` and `windlass topo`.

use clap::{Args, ValueEnum, builder::TypedValueParser};
use windlass_core::device::{Device, DeviceKind};

use super::{HostArgs, OutputArg, StatePathArgs, word::enum_parser};

/// Filter for the devices to show.
#[derive(Args, Debug, Default)]
pub(crate) struct DeviceFilter {
    /// Only devices of these kinds.
    #[arg(long, value_name = "KINDS", value_delimiter = ',', value_parser = kind())]
    kind: Vec<DeviceKind>,
    /// Only devices of these sources, built in or configured.
    #[arg(long, value_name = "SOURCES", value_delimiter = ',')]
    pub(crate) source: Vec<String>,
}

fn kind() -> impl TypedValueParser<Value = DeviceKind> {
    enum_parser(DeviceKind::ALL.iter().map(|&kind| (kind.facts().name, kind, kind_help(kind))))
}

fn kind_help(kind: DeviceKind) -> &'static str {
    match kind {
        DeviceKind::Gpu => "Whole GPUs, and partitions of AMD GPUs",
        DeviceKind::Mig => "MIG instances",
        DeviceKind::Nic => "Network and RDMA interfaces, and their virtual functions",
        DeviceKind::Fpga => "FPGA boards and their functions",
        DeviceKind::Nvme => "NVMe drives",
        DeviceKind::Other => "Devices of configured sources",
    }
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass devices
  windlass devices --kind nic,fpga -o wide
  windlass devices --config windlass.yaml --source coral
      devices of a configured source, before an agent uses it
  windlass devices --host-root /tmp/myhost
      devices of another host, from its recording (windlass host record)

Exit codes: 0 done, 1 a source did not answer, 64 wrong command line or configuration.")]
pub(crate) struct DevicesArgs {
    #[command(flatten)]
    pub(crate) filter: DeviceFilter,
    #[command(flatten)]
    pub(crate) host: HostArgs,
    #[command(flatten)]
    pub(crate) state_paths: StatePathArgs,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: DevicesOutputArg,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DevicesOutputArg {
    /// Table for a terminal.
    Table,
    /// More columns: sources, nodes and variables.
    Wide,
    /// Everything, as JSON.
    Json,
    /// Everything, as YAML.
    Yaml,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass topo
  windlass topo --kind gpu,nic
      GPUs and NICs only, on a machine with many drives

Devices outside the PCI bus are omitted, and so are partitions of GPUs, which share the GPU's
location. A matrix wider than 120 columns is split into several, GPUs first.")]
pub(crate) struct TopoArgs {
    #[command(flatten)]
    pub(crate) filter: DeviceFilter,
    #[command(flatten)]
    pub(crate) host: HostArgs,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: OutputArg,
}

// === impl DeviceFilter ===

impl DeviceFilter {
    /// True if the filter includes the device.
    pub(crate) fn includes(&self, device: &Device) -> bool {
        (self.kind.is_empty() || self.kind.contains(&device.kind))
            && (self.source.is_empty() || self.source.contains(&device.source.to_string()))
    }

    /// True if the filter includes the source.
    pub(crate) fn includes_source(&self, source: &str) -> bool {
        self.source.is_empty() || self.source.iter().any(|name| name == source)
    }
}
