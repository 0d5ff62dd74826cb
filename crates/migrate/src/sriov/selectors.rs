//! Selectors of `sriov-network-device-plugin`: lists of values. A device must match one value of each list.

use serde::Deserialize;
use windlass_config::document::{Diagnostics, Spanned};

use super::{DeviceType, functions};
use crate::{
    expression::{Conditions, has, string_or_empty},
    items, nics,
};

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Selectors {
    vendors: Option<Spanned<Vec<String>>>,
    devices: Option<Spanned<Vec<String>>>,
    drivers: Option<Spanned<Vec<String>>>,
    pci_addresses: Option<Spanned<Vec<String>>>,
    acpi_indexes: Option<Spanned<Vec<String>>>,
    pf_names: Option<Spanned<Vec<String>>>,
    root_devices: Option<Spanned<Vec<String>>>,
    link_types: Option<Spanned<Vec<String>>>,
    ddp_profiles: Option<Spanned<Vec<String>>>,
    p_keys: Option<Spanned<Vec<String>>>,
    is_rdma: Option<bool>,
    need_vhost_net: Option<bool>,
    vdpa_type: Option<Spanned<String>>,
    aux_types: Option<Spanned<Vec<String>>>,
}

/// Kubernetes' standard attribute of the PCI address.
const PCI_ADDRESS: &str = "resource.kubernetes.io/pciBusID";

/// Drivers under which a function has no network interface.
const USERSPACE_DRIVERS: [&str; 3] = ["vfio-pci", "uio", "igb_uio"];

// === impl Selectors ===

impl Selectors {
    /// Conditions on a network function. `None` if a key has no equivalent, since without its condition wrong functions
    /// would match.
    pub(super) fn into_conditions(
        self,
        kind: DeviceType,
        line: u64,
        diagnostics: &mut Diagnostics,
    ) -> Option<Conditions> {
        self.warn_of_link_types(diagnostics);
        if self.has_unsupported_keys(diagnostics) {
            return None;
        }
        let mut conditions = Conditions::default();
        self.add_kind(kind, line, &mut conditions, diagnostics);
        if self.requests_rdma() {
            conditions.and(has("rdmaDevice"));
        }
        self.add_vdpa(line, &mut conditions, diagnostics);
        conditions.one_of("pKey", self.p_keys.as_ref().map_or(&[], |keys| &keys.value));
        let index = match kind {
            DeviceType::AuxNetDevice => "sfNumber",
            DeviceType::NetDevice | DeviceType::Accelerator => "vfIndex",
        };
        functions::add("pfName", index, self.pf_names.as_ref(), &mut conditions, diagnostics);
        functions::add(
            "pfPciAddress",
            index,
            self.root_devices.as_ref(),
            &mut conditions,
            diagnostics,
        );
        self.add_common(&mut conditions, diagnostics);
        Some(conditions)
    }

    /// Adds the conditions that apply to any PCI function.
    pub(super) fn add_common(self, conditions: &mut Conditions, diagnostics: &mut Diagnostics) {
        conditions.one_of("pciVendor", &nics::hexadecimal(self.vendors, diagnostics));
        conditions.one_of("pciDevice", &nics::hexadecimal(self.devices, diagnostics));
        conditions.one_of("driver", &items(self.drivers));
        let lower = |address: String| address.to_ascii_lowercase();
        let addresses: Vec<_> = items(self.pci_addresses).into_iter().map(lower).collect();
        conditions.one_of(PCI_ADDRESS, &addresses);
        conditions.one_of("acpiIndex", &items(self.acpi_indexes));
        nics::link_types(self.link_types, conditions, diagnostics);
    }

    /// True if containers get `/dev/vhost-net` and `/dev/net/tun`, for virtual machines.
    pub(super) fn needs_vhost_net(&self) -> bool {
        self.need_vhost_net == Some(true)
    }

    /// True if containers get the nodes of the RDMA device.
    pub(super) fn requests_rdma(&self) -> bool {
        self.is_rdma == Some(true)
    }

    /// True for a selector by DDP profile, with a warning. Only ethtool's netlink family and devlink report the loaded
    /// profile of an adapter, and Windlass reads neither.
    fn has_unsupported_keys(&self, diagnostics: &mut Diagnostics) -> bool {
        let Some(profiles) = self.ddp_profiles.as_ref().filter(|it| !it.value.is_empty()) else {
            return false;
        };
        diagnostics.warn(profiles.line, NO_PROFILE_WARNING);
        true
    }

    fn warn_of_link_types(&self, diagnostics: &mut Diagnostics) {
        let drivers = self.drivers.as_ref().map_or(&[][..], |drivers| &drivers.value);
        let has_no_interface = |driver: &String| USERSPACE_DRIVERS.contains(&driver.as_str());
        if let Some(types) = &self.link_types
            && drivers.iter().any(has_no_interface)
        {
            diagnostics.warn(types.line, NO_INTERFACE);
        }
    }

    fn add_kind(
        &self,
        kind: DeviceType,
        line: u64,
        conditions: &mut Conditions,
        diagnostics: &mut Diagnostics,
    ) {
        if !matches!(kind, DeviceType::AuxNetDevice) {
            conditions.and(format!("{} == \"\"", string_or_empty("auxiliaryDevice")));
            return;
        }
        let types = self.aux_types.as_ref().map_or(&[][..], |types| &types.value);
        if types.is_empty() || types.iter().any(|kind| kind != "sf") {
            diagnostics
                .error(line, "auxNetDevice: write auxTypes: [\"sf\"], the only supported type");
        }
        conditions.and(format!("{}.contains(\".sf.\")", string_or_empty("auxiliaryDevice")));
    }

    fn add_vdpa(&self, line: u64, conditions: &mut Conditions, diagnostics: &mut Diagnostics) {
        let Some(vdpa) = self.vdpa_type.as_ref().filter(|it| !it.value.is_empty()) else { return };
        if self.requests_rdma() {
            diagnostics.error(line, "isRdma and vdpaType exclude each other");
        }
        if !["virtio", "vhost"].contains(&vdpa.value.as_str()) {
            let problem = format!("vdpaType {:?} is unknown: write virtio or vhost", vdpa.value);
            diagnostics.error(vdpa.line, problem);
        }
        conditions.one_of("vdpaType", std::slice::from_ref(&vdpa.value));
    }
}

const NO_PROFILE_WARNING: &str = "ddpProfiles of a device are unknown here: this selector is left out, and what \
    it alone would pick is not offered";

const NO_INTERFACE: &str = "a function without an interface has no link type here; in that plugin it has its \
    parent's: leave linkTypes out where drivers names vfio-pci";
