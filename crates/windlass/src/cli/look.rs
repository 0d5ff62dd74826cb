//! `windlass devices` and `windlass topo` as typed.

use clap::{Args, ValueEnum};
use windlass_core::device::{Device, DeviceKind};

use super::{HostArgs, OutputArg, RecordArgs};

/// Which devices are shown.
#[derive(Args, Debug, Default)]
pub(crate) struct Which {
    /// Only devices of these kinds.
    #[arg(long, value_name = "KINDS", value_delimiter = ',')]
    kind: Vec<KindArg>,
    /// Only devices of these sources: built in, or of the configuration.
    #[arg(long, value_name = "SOURCES", value_delimiter = ',')]
    pub(crate) source: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KindArg {
    /// Whole GPUs, and partitions of AMD's.
    Gpu,
    /// MIG instances.
    Mig,
    /// Network and RDMA interfaces, and their virtual functions.
    Nic,
    /// Reconfigurable boards.
    Fpga,
    /// NVMe drives.
    Nvme,
    /// What sources of the configuration find.
    Other,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass devices
  windlass devices --kind nic,fpga -o wide
  windlass devices --config windlass.yaml --source coral
      what a source of the configuration finds, before an agent runs with it
  windlass devices --host-root /tmp/myhost
      what another host has, from its recording (windlass host record)

Exit codes: 0 done, 1 a source did not answer, 64 wrong command line or configuration.")]
pub(crate) struct DevicesArgs {
    #[command(flatten)]
    pub(crate) which: Which,
    #[command(flatten)]
    pub(crate) host: HostArgs,
    #[command(flatten)]
    pub(crate) record: RecordArgs,
    /// How to write the answer.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: DevicesOutputArg,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DevicesOutputArg {
    /// Columns for people.
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
      GPUs and NICs alone, on a machine with many drives

Devices that sit nowhere on the PCI bus are left out, and so are parts of GPUs: they are where the
whole is. A matrix that is wider than 120 columns is told in several, GPUs first.")]
pub(crate) struct TopoArgs {
    #[command(flatten)]
    pub(crate) which: Which,
    #[command(flatten)]
    pub(crate) host: HostArgs,
    /// How to write the answer.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: OutputArg,
}

// === impl Which ===

impl Which {
    /// Whether a device is among them.
    pub(crate) fn includes(&self, device: &Device) -> bool {
        let is_kind = |kind: &KindArg| DeviceKind::from(*kind) == device.kind;
        (self.kind.is_empty() || self.kind.iter().any(is_kind))
            && (self.source.is_empty() || self.source.contains(&device.source.to_string()))
    }

    /// Whether a source is spoken of.
    pub(crate) fn speaks_of(&self, source: &str) -> bool {
        self.source.is_empty() || self.source.iter().any(|named| named == source)
    }
}

impl From<KindArg> for DeviceKind {
    fn from(arg: KindArg) -> Self {
        Self::ALL[arg as usize]
    }
}
