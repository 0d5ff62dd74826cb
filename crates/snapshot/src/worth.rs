//! What of a host is worth recording: which folders, and which files in them.
//!
//! Whoever has a source read another file adds its name here; the test that replays every machine tells
//! whether one was forgotten.

use std::path::Path;

/// A folder of the host, and how it is read.
pub(super) struct Root {
    /// Its path below the host's root.
    pub(super) path: &'static str,
    /// How many levels of folders below it.
    pub(super) depth: u32,
    /// Folders that are not entered: by name, or by path where there is a slash.
    pub(super) leave: &'static [&'static str],
    /// Whether its files are device nodes.
    pub(super) nodes: bool,
}

/// The deepest devices that are known of are functions behind several switches, with what drivers make
/// of them: 16.
const DEEP: u32 = 24;

/// The folders.
pub(super) const ROOTS: [Root; 10] = [
    Root::of(
        "sys/bus",
        4,
        &["cpu", "memory", "clockevents", "clocksource", "event_source", "workqueue"],
    ),
    Root::of("sys/class", 4, &["bdi", "thermal"]),
    Root::of("sys/dev", 2, &[]),
    Root::of(
        "sys/devices",
        DEEP,
        &[
            "power",
            "wakeup",
            "msi_irqs",
            "statistics",
            "queues",
            "cache",
            "cpufreq",
            "cpuidle",
            "microcode",
            "thermal_throttle",
            "acpi_cppc",
            "system/memory",
            "system/clockevents",
            "system/clocksource",
            "system/machinecheck",
            "virtual/bdi",
            "virtual/block",
            "virtual/thermal",
            "virtual/vtconsole",
            "virtual/workqueue",
        ],
    ),
    Root::of("sys/firmware/devicetree/base", 12, &["reserved-memory", "chosen"]),
    Root::of("sys/kernel/iommu_groups", 3, &[]),
    Root::of("sys/module", 3, &["holders", "notes", "sections"]),
    Root::of("proc/driver", 8, &[]),
    Root::of("run/windlass", 1, &[]),
    Root {
        path: "dev",
        depth: 4,
        // What is mounted there, and names that people or disks gave.
        leave: &[
            "disk",
            "drbd",
            "fd",
            "hugepages",
            "mapper",
            "md",
            "mqueue",
            "pts",
            "rbd",
            "shm",
            "zvol",
        ],
        nodes: true,
    },
];

/// Storage that is made of other storage, and that people name, often after the host: the folder of a
/// volume group is called as the group is.
const NAMED_STORAGE: [&str; 5] = ["dm-", "drbd", "md", "rbd", "zd"];

/// Files elsewhere.
pub(super) const FILES: [&str; 4] =
    ["proc/devices", "proc/1/net/ipv6_route", "proc/1/net/route", "proc/sys/kernel/osrelease"];

/// Folders of which all files are read: error counters of AMD's GPUs, partitions of InfiniBand.
const WHOLE: [&str; 2] = ["pkeys", "ras"];

/// Files in sysfs and procfs that are read wherever they are. A name that ends with `*` stands for all
/// that begin so.
///
/// Not in it: PCI configuration space, which has the device's serial number in a capability; what the
/// machine's firmware says of the owner; `node_desc` of an InfiniBand adapter, which is the host's name.
#[rustfmt::skip]
const WORTH: [&str; 189] = [
    // Any device, and its nodes.
    "uevent", "dev", "name", "index", "modalias", "driver_override", "status", "state", "type", "mode",
    "version", "model", "waiting_for_supplier",
    // PCI.
    "vendor", "device", "subsystem_vendor", "subsystem_device", "class", "revision", "numa_node",
    "local_cpulist", "current_link_speed", "current_link_width", "max_link_speed", "max_link_width",
    "enable", "power_state", "reset_method", "boot_vga", "acpi_index", "label", "ari_enabled",
    "d3cold_allowed", "dma_mask_bits", "sriov_totalvfs", "sriov_numvfs", "sriov_drivers_autoprobe",
    "sriov_offset", "sriov_stride", "sriov_vf_device", "sriov_vf_total_msix", "msi_bus",
    // USB.
    "idVendor", "idProduct", "bcdDevice", "manufacturer", "product", "serial", "busnum", "devnum",
    "devpath", "speed", "maxchild", "authorized", "removable", "configuration", "interface",
    "bDeviceClass", "bDeviceSubClass", "bDeviceProtocol", "bConfigurationValue", "bNumInterfaces",
    "bInterfaceClass", "bInterfaceSubClass", "bInterfaceProtocol", "bInterfaceNumber",
    "bAlternateSetting", "bNumEndpoints",
    // Device tree, auxiliary bus, modules, firmware of the machine.
    "compatible", "firmware-name", "device_type", "sfnum", "initstate", "netns_mode", "product_name", "sys_vendor",
    // NUMA nodes and processors.
    "online", "possible", "has_cpu", "has_memory", "cpulist", "distance", "meminfo",
    "physical_package_id",
    // Network interfaces.
    "address", "addr_len", "carrier", "operstate", "duplex", "flags", "ifindex", "iflink", "mtu",
    "dev_id", "dev_port", "phys_port_name", "phys_port_id", "phys_switch_id", "slaves",
    // RDMA.
    "ibdev", "abi_version", "port", "node_type", "node_guid", "sys_image_guid", "fw_ver", "hca_type",
    "hw_rev", "board_id", "link_layer", "phys_state", "rate", "cap_mask", "parent",
    // GPUs and other accelerators: DRM, KFD, apex, Hailo.
    "product_number", "serial_number", "unique_id", "vbios_version", "mem_info_vram_total",
    "mem_info_vram_used", "mem_info_vram_vendor", "mem_info_gtt_total", "lmem_total_bytes", "physical_vram_size_bytes",
    "current_compute_partition", "available_compute_partition", "current_memory_partition",
    "available_memory_partition", "xgmi_hive_id", "xgmi_device_id", "xgmi_physical_id",
    "gpu_id", "properties", "system_properties", "generation_id", "driver_version", "device_info",
    "bus_id", "board_location", "device_id", "accelerator_type", "gpu_busy_percent",
    // FPGAs: Alveo, DFL and OPAE, managers of SoCs.
    "user_pf", "mgmt_pf", "instance", "ready", "dev_offline", "VBNV", "timestamp", "logic_uuids",
    "interface_uuids", "serial_num", "bd_name", "xmc_bd_name", "xmc_serial_num", "afu_id", "compat_id",
    "interface_id", "id", "bitstream_id", "bitstream_metadata", "region_id", "ports_num", "errors",
    "first_error", "fme_errors", "error",
    // NVMe.
    "transport", "firmware_rev", "cntlid", "nsid", "size", "queue_count", "subsysnqn", "wwid", "nguid",
    "eui", "uuid",
    // Work queues of DSA and the like.
    "group_id", "priority",
    // NVIDIA's driver in procfs.
    "information", "access", "mig-minors", "config", "monitor", "numa_status",
    // Marks of ours.
    "simulated", "recorded",
    // Temperatures and power of boards.
    "temp*",
];

/// Files, lines and attributes whose text identifies the machine or its owner, whatever it looks like, in
/// lower case. Addresses of network interfaces are told by what they look like.
#[rustfmt::skip]
pub(super) const SECRETS: [&str; 24] = [
    "serial", "usbserial", "serial_number", "serialnumber", "serial_num", "xmc_serial_num", "unique_id", "hive_id",
    "xgmi_hive_id", "xgmi_device_id", "wwid", "nguid", "eui", "uuid", "subsysnqn", "node_guid",
    "sys_image_guid", "phys_port_id", "phys_switch_id", "hid_uniq", "uniq", "mac",
    "macaddress", "guid",
];

/// Names of the worth list that PCI devices have as binary files below `proc/driver` only.
const ONLY_IN_PROC: [&str; 2] = ["config", "monitor"];

/// Whether a link to a device node of that name is called as people like.
pub(super) fn is_named_by_people(node: &str) -> bool {
    let number = |driver: &&str| node.strip_prefix(*driver);
    let is_number =
        |rest: &str| rest.starts_with(|first: char| first.is_ascii_digit() || first == '_');
    NAMED_STORAGE.iter().filter_map(number).any(is_number)
}

// === impl Root ===

impl Root {
    const fn of(path: &'static str, depth: u32, leave: &'static [&'static str]) -> Self {
        Self { path, depth, leave, nodes: false }
    }

    /// Whether a folder, by its path below the root, is not entered.
    pub(super) fn leaves(&self, below: &str) -> bool {
        let name = below.rsplit('/').next().unwrap_or(below);
        self.leave.iter().any(|it| if it.contains('/') { *it == below } else { *it == name })
    }

    /// Whether the text of a file in a folder is worth having.
    pub(super) fn wants(&self, folder: &Path, name: &str) -> bool {
        let fits = |it: &&str| it.strip_suffix('*').map_or(*it == name, |it| name.starts_with(it));
        let elsewhere = ONLY_IN_PROC.contains(&name) && !self.path.starts_with("proc");
        let whole = WHOLE.iter().any(|it| folder.ends_with(it));
        whole || WORTH.iter().any(fits) && !elsewhere
    }
}
