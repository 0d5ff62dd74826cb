//! Application of a device change to the model.

use std::path::{Component, Path, PathBuf};

use super::device::DeviceEvent;
use crate::{
    profile::{Device, LinkState, Nic, VirtualFunction},
    state::{DeviceChanges, DriverBinding, Model},
};

/// Device that can change.
#[derive(Clone, Copy)]
enum DeviceTarget {
    /// Adapter, by position.
    Nic(usize),
    /// Virtual function, by the adapter's position and its own.
    Function(usize, usize),
    /// Other device, by position.
    Device(usize),
}

/// Reason why a device cannot change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceEventError {
    /// The name is unknown.
    #[error("there is no device with that name; there are {0}")]
    UnknownDevice(String),
    /// The device is not a network adapter.
    #[error("it is not a network adapter")]
    NotANic,
    /// The number exceeds the device's limit of virtual functions.
    #[error("it has {0} virtual functions at most")]
    TooManyFunctions(u16),
    /// The device is not a PCI function.
    #[error("it is not a PCI function")]
    NotAPciFunction,
    /// The device is not a USB device, or the port has no bus number.
    #[error("it is not a USB device, or `{0}` is not a port such as 2-1.4")]
    InvalidUsbPort(String),
    /// A virtual function has no slot.
    #[error("it is a virtual function, which `vfs:` adds and removes")]
    NotPluggable,
    /// The path is outside of the device's folder.
    #[error("`{0}` is not a file in its folder")]
    PathOutsideDevice(PathBuf),
}

// === impl Model ===

impl Model {
    pub(super) fn apply_device_event(
        &mut self,
        name: &str,
        event: &DeviceEvent,
    ) -> Result<(), DeviceEventError> {
        let target = self.find_device(name)?;
        match event {
            DeviceEvent::Unplug => self.slot_changes_mut(target)?.unplugged = true,
            DeviceEvent::Plug => self.slot_changes_mut(target)?.unplugged = false,
            DeviceEvent::Unbind => self.changes_mut(target).bound = DriverBinding::Nothing,
            DeviceEvent::Bind(driver) => self.bind(target, driver),
            DeviceEvent::SetVirtualFunctions(count) => self.set_functions(target, *count)?,
            DeviceEvent::SetIommuGroup(number) => *self.group(target)? = Some(*number),
            DeviceEvent::SetFile(file, text) => self.set_file(target, file, Some(text.clone()))?,
            DeviceEvent::RemoveFile(file) => self.set_file(target, file, None)?,
            DeviceEvent::LinkDown => self.nic(target)?.link = LinkState::Down,
            DeviceEvent::LinkUp => self.nic(target)?.link = LinkState::Up,
            DeviceEvent::Replug(port) => self.replug(target, port)?,
        }
        Ok(())
    }

    /// Finds a device by its name, its interface, its RDMA device, or its address.
    fn find_device(&self, name: &str) -> Result<DeviceTarget, DeviceEventError> {
        for (index, nic) in self.nics.iter().enumerate() {
            let names = [Some(&nic.netdev), nic.rdma.as_ref()];
            if names.contains(&Some(&name.to_owned())) || nic.path.address().to_string() == name {
                return Ok(DeviceTarget::Nic(index));
            }
            for (nth, (path, function)) in nic.virtual_functions().enumerate() {
                let names = [function.netdev.as_deref(), function.rdma.as_deref()];
                if names.contains(&Some(name)) || path.address().to_string() == name {
                    return Ok(DeviceTarget::Function(index, nth));
                }
            }
        }
        let is_target = |device: &Device| {
            let address = device.pci.as_ref().map(|pci| pci.path.address().to_string());
            device.name == name || address.as_deref() == Some(name)
        };
        let target = self.devices.iter().position(is_target).map(DeviceTarget::Device);
        target.ok_or_else(|| DeviceEventError::UnknownDevice(self.names()))
    }

    fn names(&self) -> String {
        let nics = self.nics.iter().map(|nic| nic.netdev.as_str());
        let devices = self.devices.iter().map(|device| device.name.as_str());
        let names: Vec<_> = nics.chain(devices).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    }

    fn changes_mut(&mut self, target: DeviceTarget) -> &mut DeviceChanges {
        let name = match target {
            DeviceTarget::Nic(index) => self.nics[index].netdev.clone(),
            DeviceTarget::Function(index, nth) => {
                let mut functions = self.nics[index].virtual_functions();
                let (path, _) = functions.nth(nth).expect("the target was found");
                path.address().to_string()
            }
            DeviceTarget::Device(index) => self.devices[index].name.clone(),
        };
        self.happened.entry(name).or_default()
    }

    fn slot_changes_mut(
        &mut self,
        target: DeviceTarget,
    ) -> Result<&mut DeviceChanges, DeviceEventError> {
        match target {
            DeviceTarget::Function(..) => Err(DeviceEventError::NotPluggable),
            _ => Ok(self.changes_mut(target)),
        }
    }

    fn bind(&mut self, target: DeviceTarget, driver: &str) {
        let own_driver = match target {
            DeviceTarget::Nic(index) => Some(self.nics[index].driver.as_str()),
            DeviceTarget::Function(index, nth) => {
                let sriov = self.nics[index].sriov.as_ref();
                sriov.and_then(|sriov| sriov.functions[nth].driver.as_deref())
            }
            DeviceTarget::Device(index) => self.devices[index].driver.as_deref(),
        };
        let binding = if own_driver == Some(driver) {
            DriverBinding::Own
        } else {
            DriverBinding::Other(driver.to_owned())
        };
        self.changes_mut(target).bound = binding;
    }

    fn nic(&mut self, target: DeviceTarget) -> Result<&mut Nic, DeviceEventError> {
        match target {
            DeviceTarget::Nic(index) | DeviceTarget::Function(index, _) => {
                Ok(&mut self.nics[index])
            }
            DeviceTarget::Device(_) => Err(DeviceEventError::NotANic),
        }
    }

    fn group(&mut self, target: DeviceTarget) -> Result<&mut Option<u32>, DeviceEventError> {
        match target {
            DeviceTarget::Nic(index) => Ok(&mut self.nics[index].group),
            DeviceTarget::Function(index, nth) => {
                let sriov = self.nics[index].sriov.as_mut().expect("the target was found");
                Ok(&mut sriov.functions[nth].group)
            }
            DeviceTarget::Device(index) => {
                let pci = self.devices[index].pci.as_mut();
                Ok(&mut pci.ok_or(DeviceEventError::NotAPciFunction)?.group)
            }
        }
    }

    fn set_file(
        &mut self,
        target: DeviceTarget,
        file: &Path,
        text: Option<String>,
    ) -> Result<(), DeviceEventError> {
        let is_inside = file.components().all(|part| matches!(part, Component::Normal(_)));
        if !is_inside || file.as_os_str().is_empty() {
            return Err(DeviceEventError::PathOutsideDevice(file.to_owned()));
        }
        self.changes_mut(target).files.insert(file.to_owned(), text);
        Ok(())
    }

    /// Creates virtual functions as the kernel does: bound to the adapter's driver, with names derived from
    /// the adapter.
    fn set_functions(&mut self, target: DeviceTarget, count: u16) -> Result<(), DeviceEventError> {
        let (mut rdma_names, mut groups) = (self.unused_rdma_names(), self.unused_iommu_groups());
        let DeviceTarget::Nic(index) = target else { return Err(DeviceEventError::NotANic) };
        let nic = &mut self.nics[index];
        let sriov = nic.sriov.as_mut().ok_or(DeviceEventError::TooManyFunctions(0))?;
        if count > sriov.total {
            return Err(DeviceEventError::TooManyFunctions(sriov.total));
        }
        sriov.functions.truncate(count.into());
        for nth in sriov.functions.len()..count.into() {
            sriov.functions.push(VirtualFunction {
                driver: Some(nic.driver.clone()),
                netdev: Some(format!("{}v{nth}", nic.netdev)),
                rdma: nic.rdma.as_ref().and_then(|_| rdma_names.next()),
                group: nic.group.and_then(|_| groups.next()),
                vdpa: None,
            });
        }
        Ok(())
    }

    /// Unused names for RDMA devices.
    fn unused_rdma_names(&self) -> impl Iterator<Item = String> + use<> {
        let rdma_names = |nic: &Nic| {
            let functions = nic.sriov.iter().flat_map(|sriov| &sriov.functions);
            let functions = functions.map(|function| function.rdma.clone());
            let subfunctions = nic.subfunctions.iter().map(|function| function.rdma.clone());
            functions.chain(subfunctions).chain([nic.rdma.clone()]).flatten().collect::<Vec<_>>()
        };
        let used: Vec<_> = self.nics.iter().flat_map(rdma_names).collect();
        (0..).map(|number: u32| format!("mlx5_{number}")).filter(move |name| !used.contains(name))
    }

    /// Unused numbers of IOMMU groups.
    fn unused_iommu_groups(&self) -> impl Iterator<Item = u32> + use<> {
        let functions = self.nics.iter().flat_map(Nic::virtual_functions);
        let functions = functions.filter_map(|(_, function)| function.group);
        let devices = self.devices.iter().filter_map(|device| device.pci.as_ref()?.group);
        let used = self.nics.iter().filter_map(|nic| nic.group).chain(functions).chain(devices);
        let first = used.max().map_or(0, |highest| highest + 1);
        first..
    }

    fn replug(&mut self, target: DeviceTarget, port: &str) -> Result<(), DeviceEventError> {
        let invalid_port = || DeviceEventError::InvalidUsbPort(port.to_owned());
        let DeviceTarget::Device(index) = target else { return Err(invalid_port()) };
        let bus =
            port.split_once('-').and_then(|(bus, _)| bus.parse().ok()).ok_or_else(invalid_port)?;
        let number = |device: &Device| device.files.get(Path::new("devnum"))?.parse::<u32>().ok();
        let highest = self.devices.iter().filter_map(number).max().unwrap_or(1);
        self.devices[index].move_to_port(bus, port, highest + 1).ok_or_else(invalid_port)?;
        self.changes_mut(target).unplugged = false;
        Ok(())
    }
}

// === impl Device ===

impl Device {
    /// Moves a USB device to a port of a bus and gives it a new number.
    fn move_to_port(&mut self, bus: u32, port: &str, number: u32) -> Option<()> {
        let folder = self.folder.as_ref().filter(|_| self.bus.as_deref() == Some("usb"))?;
        let old_port = folder.file_name()?.to_str()?.to_owned();
        let is_hub = |part: &Component<'_>| {
            let name = part.as_os_str().to_str().unwrap_or_default();
            name.strip_prefix("usb").is_some_and(|number| number.parse::<u32>().is_ok())
        };
        let controller_dir: PathBuf =
            folder.components().take_while(|part| !is_hub(part)).collect();
        self.folder = Some(controller_dir.join(format!("usb{bus}")).join(port));
        self.files.insert("busnum".into(), bus.to_string());
        self.files.insert("devnum".into(), number.to_string());
        // Interface names contain the port: `1-4:1.0`.
        for child in &mut self.children {
            let path = child.folder.to_str().unwrap_or_default();
            if let Some(rest) = path.strip_prefix(&format!("{old_port}:")) {
                child.folder = PathBuf::from(format!("{port}:{rest}"));
            }
        }
        Some(())
    }
}
