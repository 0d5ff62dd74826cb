//! Allowlist of a snapshot: folders, and names of files to read.
//!
//! The list has the name of each file that a source of devices reads. A test that replays every machine detects a
//! missing name.

use std::path::Path;

/// An allowed folder.
pub(super) struct AllowedFolder {
    /// Path below the host's root.
    pub(super) path: &'static str,
    /// Maximum depth of subfolders.
    pub(super) depth: u32,
    /// Excluded subfolders: by name, or by path if it contains a slash.
    pub(super) excluded: &'static [&'static str],
    /// True if the files are device nodes.
    pub(super) has_device_nodes: bool,
}

/// Depth of `/sys/devices`. The deepest known entries belong to drivers of functions behind several switches, at depth
/// 16.
const DEVICES_DEPTH: u32 = 24;

/// Allowed folders.
pub(super) const ROOTS: &[AllowedFolder] = &[
    AllowedFolder::of(
        "sys/bus",
        4,
        &["cpu", "memory", "clockevents", "clocksource", "event_source", "workqueue"],
    ),
    AllowedFolder::of("sys/class", 4, &["bdi", "thermal"]),
    AllowedFolder::of("sys/dev", 2, &[]),
    AllowedFolder::of(
        "sys/devices",
        DEVICES_DEPTH,
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
    AllowedFolder::of("sys/firmware/devicetree/base", 12, &["reserved-memory", "chosen"]),
    AllowedFolder::of("sys/kernel/iommu_groups", 3, &[]),
    AllowedFolder::of("sys/module", 3, &["holders", "notes", "sections"]),
    AllowedFolder::of("proc/driver", 8, &[]),
    AllowedFolder::of("run/windlass", 1, &[]),
    AllowedFolder {
        path: "dev",
        depth: 4,
        // Mount points, and names chosen by administrators or taken from disks.
        excluded: &[
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
        has_device_nodes: true,
    },
];

/// Prefixes of storage nodes whose links have names chosen by administrators, often after the host: a volume group's
/// folder has the group's name.
const NAMED_STORAGE: [&str; 5] = ["dm-", "drbd", "md", "rbd", "zd"];

/// Single files outside the allowed folders.
pub(super) const FILES: [&str; 4] =
    ["proc/devices", "proc/1/net/ipv6_route", "proc/1/net/route", "proc/sys/kernel/osrelease"];

/// Folders in which every file is read: error counters of AMD GPUs, InfiniBand partitions.
const FULLY_READ: [&str; 2] = ["pkeys", "ras"];

/// Names of files to read in sysfs and procfs. A trailing `*` matches any suffix.
///
/// The list excludes PCI configuration space, which contains serial numbers; DMI data of the owner; and `node_desc` of
/// InfiniBand adapters, which is the host name.
#[rustfmt::skip]
const ALLOWED: &[&str] = &[
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
    // Work queues of DSA and similar accelerators.
    "group_id", "priority",
    // NVIDIA's driver in procfs.
    "information", "access", "mig-minors", "config", "monitor", "numa_status",
    // Markers of simulated and recorded hosts.
    "simulated", "recorded",
    // Temperatures and power of boards.
    "temp*",
];

/// Names of files, lines and attributes whose text identifies the machine, in lower case. MAC addresses elsewhere are
/// recognised by their shape.
#[rustfmt::skip]
pub(super) const SECRETS: &[&str] = &[
    "serial", "usbserial", "serial_number", "serialnumber", "serial_num", "xmc_serial_num", "unique_id", "hive_id",
    "xgmi_hive_id", "xgmi_device_id", "wwid", "nguid", "eui", "uuid", "subsysnqn", "node_guid",
    "sys_image_guid", "phys_port_id", "phys_switch_id", "hid_uniq", "uniq", "mac",
    "macaddress", "guid",
];

/// Names that are allowed in `proc/driver` only, because elsewhere PCI devices have binary files of these names.
const ONLY_IN_PROC: [&str; 2] = ["config", "monitor"];

/// True if links to this node have names chosen by administrators.
pub(super) fn has_chosen_name(node: &str) -> bool {
    let after_prefix = |driver: &&str| node.strip_prefix(*driver);
    let is_number =
        |rest: &str| rest.starts_with(|first: char| first.is_ascii_digit() || first == '_');
    NAMED_STORAGE.iter().filter_map(after_prefix).any(is_number)
}

// === impl AllowedFolder ===

impl AllowedFolder {
    const fn of(path: &'static str, depth: u32, excluded: &'static [&'static str]) -> Self {
        Self { path, depth, excluded, has_device_nodes: false }
    }

    /// True for an excluded subfolder, by path below the root.
    pub(super) fn excludes(&self, below: &str) -> bool {
        let name = below.rsplit('/').next().unwrap_or(below);
        self.excluded.iter().any(|it| if it.contains('/') { *it == below } else { *it == name })
    }

    /// True if the snapshot may have the file's text.
    pub(super) fn allows(&self, folder: &Path, name: &str) -> bool {
        let fits = |it: &&str| it.strip_suffix('*').map_or(*it == name, |it| name.starts_with(it));
        let is_excluded = ONLY_IN_PROC.contains(&name) && !self.path.starts_with("proc");
        let is_fully_read = FULLY_READ.iter().any(|it| folder.ends_with(it));
        is_fully_read || ALLOWED.iter().any(fits) && !is_excluded
    }
}
