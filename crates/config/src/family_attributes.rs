//! Attributes and capacities of the built-in device families, one row each: name, type and meaning.
//!
//! `config check` compares expressions with these tables, and docs/attributes.md has them.

use windlass_core::device::SourceName;

/// Attribute or capacity that a device may have.
#[derive(Debug)]
pub struct Attribute {
    /// Domain that defines the name.
    pub domain: &'static str,
    /// Name within the domain.
    pub name: &'static str,
    /// Type of the value.
    pub value_type: AttributeType,
    /// Meaning with unit and example, in Markdown for a cell of a table.
    pub meaning: &'static str,
}

/// Attribute type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttributeType {
    /// A text.
    Text,
    /// A number.
    Int,
    /// A boolean.
    Bool,
    /// A version.
    Version,
    /// A version if it parses, else text.
    VersionOrText,
    /// The amount of a capacity.
    Amount,
}

/// Tables of each source.
static FAMILIES: [(SourceName, &[&[Attribute]]); 6] = [
    (SourceName::NVIDIA, &[NVIDIA]),
    (SourceName::NICS, &[NICS]),
    (SourceName::AMD, &[AMD, FUNCTION]),
    (SourceName::INTEL, &[INTEL, FUNCTION]),
    (SourceName::FPGA, &[FPGA, FUNCTION]),
    (SourceName::NVME, &[NVME, FUNCTION]),
];

/// Attributes and capacities that devices of a built-in source may have besides the [`STANDARD`] ones.
pub fn of(source: &SourceName) -> impl Iterator<Item = &'static Attribute> {
    let families = FAMILIES.iter().filter(move |(name, _)| name == source);
    families.flat_map(|(_, tables)| tables.iter().copied().flatten())
}

/// Makes rows of a table by domain.
macro_rules! attributes {
    ($($domain:literal => { $($name:literal: $value_type:ident, $meaning:literal;)+ })+) => {
        &[$($(Attribute {
            domain: $domain,
            name: $name,
            value_type: AttributeType::$value_type,
            meaning: $meaning,
        },)+)+]
    };
}

/// Attributes of PCI devices of every source, which Kubernetes defines.
pub const STANDARD: &[Attribute] = attributes! {
    "resource.kubernetes.io" => {
        "pciBusID": Text, "PCI address, `0000:1b:00.0`";
        "pcieRoot": Text, "Host bridge above the device, `pci0000:15`";
        "numaNode": Int, "Nearest NUMA node, if firmware reports one";
    }
};

/// Attributes of any PCI function.
const FUNCTION: &[Attribute] = attributes! {
    "windlass.dev" => {
        "pciVendor":    Text, "PCI vendor id, four hexadecimal digits";
        "pciDevice":    Text, "PCI device id, four hexadecimal digits";
        "pciClass":     Text, "PCI class, subclass and programming interface, `0x` and six hexadecimal digits";
        "pcieSwitch":   Text, "Upstream port of the PCIe switch above the device, `0000:16:00.0`; absent without a switch";
        "driver":       Text, "Name of the bound driver";
        "iommuGroup":   Text, "IOMMU group, `42`";
        "isSriovVf":    Bool, "The function is a virtual function";
        "pfPciAddress": Text, "PCI address of a virtual function's physical function";
        "sriovVfs":     Int, "Number of virtual functions, if the function can have some";
    }
};

const NVIDIA: &[Attribute] = attributes! {
    "nvidia.com" => {
        "type":                  Text, "`gpu`, or `mig` for a MIG instance";
        "uuid":                  Text, "UUID of the GPU or MIG instance";
        "productName":           Text, "Product name, `NVIDIA H100 80GB HBM3`";
        "brand":                 Text, "Brand as gpu-feature-discovery spells it, `Tesla`";
        "architecture":          Text, "Chip architecture, `Hopper`";
        "cudaComputeCapability": Version, "CUDA compute capability, `9.0.0`";
        "driverVersion":         VersionOrText, "Version of the driver, `580.95.5`; a string if it is not a semantic version";
        "cudaDriverVersion":     Version, "Newest CUDA version that the driver supports, `13.0.0`";
        "index":                 Int, "Number of the GPU in the driver's order";
        "minor":                 Int, "Number of the device node: 0 for `/dev/nvidia0`";
        "serial":                Text, "Serial number of the board; not in claims";
        "migCapable":            Bool, "The GPU can have MIG instances";
        "migEnabled":            Bool, "The GPU is in MIG mode";
        "profile":               Text, "Profile of the MIG instance, `1g.10gb`";
        "parentUUID":            Text, "UUID of the MIG instance's GPU";
        "parentIndex":           Int, "Number of the MIG instance's GPU";
        "instanceIndex":         Int, "Position of the MIG instance on its GPU";
        "nvlinkGeneration":      Int, "NVLink generation, 1 for Pascal to 5 for Blackwell";
        "nvlinkDegraded":        Bool, "An NVLink was up and is down";
        "fabricState":           Text, "Registration with the NVLink fabric: `NotStarted`, `InProgress`, `Completed`, `Failed`";
        "fabricClusterUUID":     Text, "Cluster of a joined multi-node fabric";
        "fabricCliqueID":        Int, "Clique in a joined multi-node fabric";
        "fabricDegraded":        Bool, "The fabric reports reduced bandwidth or broken routes";
        "pendingRowRemap":       Bool, "A row remapping waits for a reset";
        "pendingPageRetirement": Bool, "A page retirement is pending, on GPUs without row remapping";
        "thermalSlowdown":       Bool, "Heat reduced the clocks within `health.quietPeriod`; not in claims";
        "powerSlowdown":         Bool, "The power supply's brake reduced the clocks within `health.quietPeriod`; not in claims";
        "memory":                Amount, "Memory, `81559Mi`";
        "multiprocessors":       Amount, "Multiprocessors of the MIG instance";
        "copyEngines":           Amount, "Copy engines of the MIG instance";
        "decoders":              Amount, "Video decoders of the MIG instance";
        "encoders":              Amount, "Video encoders of the MIG instance";
        "jpegEngines":           Amount, "JPEG engines of the MIG instance";
        "ofaEngines":            Amount, "Optical flow engines of the MIG instance";
    }
    "windlass.dev" => {
        "pciClass":   Text, "PCI class, subclass and programming interface, `0x030200`";
        "pcieSwitch": Text, "Upstream port of the PCIe switch above the device, `0000:16:00.0`; absent without a switch";
        "island":     Text, "First of the GPUs that NVLink connects with this one, directly or through others: its PCI address. Absent without NVLink, and for MIG instances";
        "simulated":  Text, "Machine profile of a simulated driver, `dgx-h100`";
    }
};

const NICS: &[Attribute] = attributes! {
    "windlass.dev" => {
        "ifName":          Text, "Name of the first network interface, `ens1f0`";
        "mac":             Text, "Hardware address of the first network interface";
        "mtu":             Int, "MTU of the first network interface in bytes, 9000";
        "driver":          Text, "Bound driver, `mlx5_core`";
        "pciVendor":       Text, "PCI vendor id, `15b3`";
        "pciDevice":       Text, "PCI device id, `101e`";
        "pciClass":        Text, "PCI class, subclass and programming interface, `0x020000`";
        "pcieSwitch":      Text, "Upstream port of the PCIe switch above the device, `0000:16:00.0`; absent without a switch";
        "acpiIndex":       Text, "Slot number by firmware, which udev uses in `eno1`";
        "rdma":            Bool, "The function has an RDMA device";
        "rdmaDevice":      Text, "Name of the first RDMA device, `mlx5_0`";
        "linkLayer":       Text, "Link layer of the first RDMA port: `InfiniBand` or `Ethernet`";
        "rate":            Text, "Rate of the first RDMA port, `400 Gb/sec (4X NDR)`";
        "portState":       Text, "State of the first RDMA port, `ACTIVE`";
        "pKey":            Text, "First partition key of the first RDMA port, `0xffff`";
        "rdmaNetns":       Text, "Mode of the host's RDMA devices for network namespaces: `shared` or `exclusive`";
        "sriov":           Bool, "The function can have virtual functions";
        "sriovVfs":        Int, "Number of virtual functions, if the function can have some";
        "isSriovVf":       Bool, "The function is a virtual function";
        "vfIndex":         Int, "Number of a virtual function on its physical function";
        "representor":     Text, "Host interface through which the adapter's switch reaches a virtual function";
        "pfName":          Text, "Network interface of the physical function, or of a subfunction's parent";
        "pfPciAddress":    Text, "PCI address of the physical function, or of a subfunction's parent";
        "sfNumber":        Int, "Number of a subfunction, chosen by the administrator";
        "auxiliaryDevice": Text, "Name of a subfunction on its bus, `mlx5_core.sf.2`";
        "vdpaType":        Text, "Driver of the first vDPA device: `vhost` or `virtio`";
        "vdpaDevice":      Text, "Name of the first vDPA device, `vdpa0`";
    }
    "dra.net" => {
        "ifName":        Text, "DRANET's name of `windlass.dev/ifName`";
        "mac":           Text, "DRANET's name of `windlass.dev/mac`";
        "mtu":           Int, "DRANET's name of `windlass.dev/mtu`";
        "encapsulation": Text, "Link type of the first network interface: `ether` or `infiniband`";
        "state":         Text, "Operational state of the first network interface, `up`";
        "rdma":          Bool, "DRANET's name of `windlass.dev/rdma`";
    }
};

const AMD: &[Attribute] = attributes! {
    "amd.com" => {
        "type":             Text, "`gpu`, for a partition too";
        "productName":      Text, "Product name, `AMD Instinct MI300X OAM`";
        "deviceID":         Text, "PCI device id, `74a1`";
        "driverVersion":    VersionOrText, "Version of the module `amdgpu`, `6.12.12`; a string if it is not a semantic version";
        "computePartition": Text, "Compute partition mode, `CPX`";
        "memoryPartition":  Text, "Memory partition mode, `NPS4`";
        "partitionProfile": Text, "Both partition modes, `cpx_nps4`";
        "gfxTarget":        Text, "Compiler target, `gfx942`";
        "family":           Text, "Chip family in AMD's driver, `AI`";
        "memory":           Amount, "Memory of the GPU or partition, `196592Mi`";
        "computeUnits":     Amount, "Compute units of the GPU or partition";
        "simdUnits":        Amount, "SIMD units of the GPU or partition";
    }
    "windlass.dev" => {
        "island": Text, "First of the GPUs that xGMI connects with this one, directly or through others: its PCI address. Absent without xGMI";
    }
};

const INTEL: &[Attribute] = attributes! {
    "gpu.intel.com" => {
        "driver":          Text, "Bound driver: `i915` or `xe`";
        "family":          Text, "Product line, `Flex`";
        "pciId":           Text, "PCI device id, `56c0`";
        "integrated":      Bool, "The GPU is a part of the processor";
        "virtualFunction": Bool, "The function is a virtual function";
        "memory":          Amount, "Local memory, `16Gi`";
    }
};

const FPGA: &[Attribute] = attributes! {
    "amd.com" => {
        "type":               Text, "`alveo`";
        "shell":              Text, "Name of the shell, `xilinx_u250_gen3x16_xdma_shell_4_1`";
        "shellTimestamp":     Text, "Build time of the shell, `1643110417`";
        "logicUuid":          Text, "UUID of the loaded logic";
        "serialNumber":       Text, "Serial number of the card; not in claims";
        "deviceID":           Text, "PCI device id, `5005`";
        "managementFunction": Text, "PCI address of the management function";
        "fpgas":              Int, "Number of FPGAs of a card that `unit: card` joined";
    }
    "fpga.intel.com" => {
        "type":        Text, "`region`";
        "interfaceId": Text, "Interface id of the region, which programs must match";
        "afuId":       Text, "Id of the loaded function (AFU), of a port or of a region with one port";
        "bitstreamId": Text, "Bitstream id that the management engine reports, `0x23000410010310`";
    }
    "windlass.dev" => {
        "type":        Text, "`fpga-manager`; in claims of `windlass.dev` the kind";
        "fpgaManager": Text, "Name of the FPGA manager, `Xilinx ZynqMP FPGA Manager`";
        "firmware":    Text, "Loaded firmware, if the manager or the device tree names it";
        "compatible":  Text, "Device tree name of the manager, `xlnx,zynqmp-pcap-fpga`";
    }
};

const NVME: &[Attribute] = attributes! {
    "windlass.dev" => {
        "model":     Text, "Model, `SAMSUNG MZWLO3T8HCLS-00A07`";
        "firmware":  Text, "Firmware revision, `OPPA1B5Q`";
        "transport": Text, "Transport of the controller, `pcie`";
    }
};
