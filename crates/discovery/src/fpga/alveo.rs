//! Alveo boards by XRT's two drivers: a user function for programs, and a management function that programs
//! and resets the board.
//!
//! Both are functions of one PCI device, in varying order. A virtual machine has only the user function, a board
//! without a shell only the management function. Containers get the management node only if the configuration
//! asks for it.

use std::{collections::BTreeMap, path::Path};

use jiff::Timestamp;
use windlass_config::FpgaRules;
use windlass_core::{
    attribute::{AttributeName, Attributes},
    device::{Device, DeviceKind, DeviceNode, SourceName},
    health::{Observation, Reason},
    pci::PciAddress,
};
use windlass_host::{FoundNode, Host, PciFunction, drm_nodes};

use super::{ObservedDevice, is_identifier, not_ready};
use crate::{
    facts::{attributes, function_attributes, text_value},
    failure::{self, Failure},
};

pub(super) const DOMAIN: &str = "amd.com";
const SHELL_NAME: &str = "shell";
const TIMESTAMP_NAME: &str = "shellTimestamp";

/// Shell name: vendor, board, name, version.
pub(super) const SHELL: AttributeName = AttributeName::new(DOMAIN, SHELL_NAME);

/// Build time of the shell.
pub(super) const SHELL_TIMESTAMP: AttributeName = AttributeName::new(DOMAIN, TIMESTAMP_NAME);

/// Vendors of boards with XRT: AMD (formerly Xilinx), Arista, Amazon, Advantech.
const VENDORS: [&str; 4] = ["10ee", "3475", "1d0f", "13fe"];

/// Marker files of XRT's drivers.
const USER_MARKER: &str = "user_pf";
const MANAGEMENT_MARKER: &str = "mgmt_pf";

/// Prefixes of the folder with serial number and sensors: the satellite controller, or its successor on newer boards.
const CONTROLLERS: [&str; 2] = ["xmc.u.", "hwmon_sdm.u."];

/// Folder of the streaming DMA engine, and prefix of its nodes.
const QDMA: &str = "dma.qdma.u";

/// A board during a scan.
#[derive(Debug, Default)]
pub(super) struct Board {
    user: Option<PciFunction>,
    management: Option<PciFunction>,
}

/// Host and configuration for the scan of a board.
struct BoardReader<'a> {
    host: &'a Host,
    rules: &'a FpgaRules,
}

/// Boards of the host by PCI address, without reading from any.
pub(super) fn boards(host: &Host) -> BTreeMap<PciAddress, Board> {
    let mut boards: BTreeMap<PciAddress, Board> = BTreeMap::new();
    for function in host.pci_functions(|function| function.is_of_vendor(&VENDORS)) {
        let has_marker = |marker: &str| host.exists(function.folder().join(marker));
        let (is_user, is_management) = (has_marker(USER_MARKER), has_marker(MANAGEMENT_MARKER));
        if is_user || is_management {
            let board = boards.entry(function.address.first_function()).or_default();
            let role = if is_user { &mut board.user } else { &mut board.management };
            *role = Some(function);
        }
    }
    boards
}

// === impl Board ===

impl Board {
    /// The device without attributes and nodes, which come from reading the board.
    pub(super) fn device(&self) -> Option<Device> {
        let main_function = self.main_function()?;
        let address = main_function.address.first_function().to_dashed();
        let id = format!("{}-{address}", SourceName::FPGA).parse().ok()?;
        let device = Device::new(id, DeviceKind::Fpga, SourceName::FPGA, Timestamp::UNIX_EPOCH);
        Some(Device {
            place: main_function.location(),
            folder: Some(main_function.folder()),
            ..device
        })
    }

    /// Reads the board. May block forever: firmware answers some files, except during reset.
    pub(super) fn observe(&self, host: &Host, rules: &FpgaRules) -> Option<ObservedDevice> {
        let (device, reader) = (self.device()?, BoardReader { host, rules });
        let (nodes, attributes) =
            (reader.nodes(self), reader.attributes(self, self.main_function()?));
        let observation = reader.observe(self, &nodes);
        Some((Device { attributes, nodes, ..device }, observation))
    }

    fn main_function(&self) -> Option<&PciFunction> {
        self.user.as_ref().or(self.management.as_ref())
    }
}

// === impl BoardReader ===

impl BoardReader<'_> {
    fn attributes(&self, board: &Board, main_function: &PciFunction) -> Attributes {
        let user = board.user.as_ref().map(PciFunction::folder);
        let shell = user.as_deref().and_then(|folder| self.shell(folder));
        let (name, timestamp) = shell.unzip();
        let uuid = user.as_deref().and_then(|folder| self.logic_uuid(folder));
        let serial = user.as_deref().and_then(|folder| self.serial(folder));
        let management = board.management.as_ref();
        let alveo_attributes = attributes(
            DOMAIN,
            [
                ("type", text_value("alveo")),
                (SHELL_NAME, name.and_then(text_value)),
                (TIMESTAMP_NAME, timestamp.and_then(text_value)),
                ("logicUuid", uuid.and_then(text_value)),
                ("serialNumber", serial.and_then(text_value)),
                ("deviceID", main_function.device.as_ref().and_then(text_value)),
                (
                    "managementFunction",
                    management.and_then(|function| text_value(function.address.to_string())),
                ),
            ],
        );
        alveo_attributes.into_iter().chain(function_attributes(self.host, main_function)).collect()
    }

    /// Shell name and build time. The folder's number changes at each reset.
    fn shell(&self, user: &Path) -> Option<(String, String)> {
        let mut roms = self.entries_with_prefix(user, "rom");
        roms.find_map(|rom| {
            let read = |file: &str| self.host.read_text(format!("{rom}/{file}"));
            let (name, timestamp) = (read("VBNV")?, read("timestamp")?);
            (is_identifier(&name) && is_identifier(&timestamp)).then_some((name, timestamp))
        })
    }

    /// UUID of the loaded logic. If several layers report one, the last counts, as in AMD's plugin.
    fn logic_uuid(&self, user: &Path) -> Option<String> {
        let text = self.host.read_text(user.join("logic_uuids"))?;
        text.lines().last().map(|line| line.trim().to_owned())
    }

    fn serial(&self, user: &Path) -> Option<String> {
        let mut folders =
            CONTROLLERS.iter().flat_map(|prefix| self.entries_with_prefix(user, prefix));
        let read = |folder: String| self.host.read_text(format!("{folder}/serial_num"));
        folders.find_map(|folder| read(folder).filter(|serial| !serial.is_empty()))
    }

    fn nodes(&self, board: &Board) -> Vec<DeviceNode> {
        let user = board.user.iter().flat_map(|user| self.user_nodes(user));
        let management = board.management.as_ref().filter(|_| self.rules.management_nodes);
        user.chain(management.and_then(|function| self.management_node(function))).collect()
    }

    fn user_nodes(&self, user: &PciFunction) -> Vec<DeviceNode> {
        let folder = user.folder();
        let folder = self.host.canonicalize(&folder).unwrap_or(folder);
        let render = drm_nodes::nodes(self.host, &folder).into_iter().filter(drm_nodes::is_render);
        let is_engine = |found: &FoundNode| found.name.starts_with(QDMA);
        let engine =
            self.host.nodes_of(&folder).into_iter().find(is_engine).map(|found| found.node);
        // Older drivers create the node without a sysfs entry.
        let fallback_node =
            || DeviceNode::new(format!("/dev/xfpga/{QDMA}{}.0", user.address.to_requester_id()));
        let has_engine = self.entries_with_prefix(&folder, QDMA).next().is_some();
        render.chain(engine.or_else(|| has_engine.then(fallback_node))).collect()
    }

    fn management_node(&self, function: &PciFunction) -> Option<DeviceNode> {
        let instance = self.host.read_text(function.folder().join("instance"))?;
        let is_number = instance.bytes().all(|byte| byte.is_ascii_digit());
        (is_number && !instance.is_empty())
            .then(|| DeviceNode::new(format!("/dev/xclmgmt{instance}")))
    }

    fn observe(&self, board: &Board, nodes: &[DeviceNode]) -> Observation {
        let Some(user) = &board.user else {
            return not_ready("it has only a management function: it has no shell");
        };
        let folder = user.folder();
        if self.shell(&folder).is_none() {
            return not_ready("it reports no shell");
        }
        if self.logic_uuid(&folder).is_some_and(|uuid| !is_identifier(&uuid)) {
            return not_ready(
                "the identifier of its logic is all ones (ffff...): its firmware crashed",
            );
        }
        if self.host.read_text(folder.join("ready")).is_some_and(|ready| is_zero(&ready)) {
            return not_ready("its driver reports it as not ready");
        }
        let functions = [Some(user), board.management.as_ref()];
        let firewall =
            functions.into_iter().flatten().find_map(|function| self.firewall_failure(function));
        let power = || self.power_failure(&folder);
        let overheating = || {
            self.overheating(&folder).or_else(|| failure::overheating_failure(self.host, &folder))
        };
        let failure = firewall.or_else(power).or_else(overheating);
        failure::observation(failure.or_else(|| failure::node_failure(self.host, nodes)))
    }

    /// Failure by a tripped firewall between board and host. A tripped firewall blocks transfers until a board reset.
    fn firewall_failure(&self, function: &PciFunction) -> Option<Failure> {
        let folder = function.folder();
        let mut firewalls = self.entries_with_prefix(&folder, "firewall.");
        let level = firewalls.find_map(|folder| {
            self.host.read_text(format!("{folder}/detected_level")).filter(|level| !is_zero(level))
        })?;
        Some((Reason::NeedsReset, format!("its firewall tripped at level {level}")))
    }

    fn power_failure(&self, user: &Path) -> Option<Failure> {
        let mut controllers = self.entries_with_prefix(user, CONTROLLERS[0]);
        let has_power_warning = |folder: String| {
            self.host
                .read_text(format!("{folder}/xmc_power_warn"))
                .is_some_and(|text| !is_zero(&text))
        };
        let detail = "its power draw is beyond what the board allows".to_owned();
        controllers.any(has_power_warning).then_some((Reason::OutOfBounds, detail))
    }

    /// Overheating. XRT's drivers expose no sensor limits (`xmc.c`, `hwmon_sdm.c`). Some controllers report
    /// the clock shutdown threshold; most report `N/A`.
    fn overheating(&self, user: &Path) -> Option<Failure> {
        let mut controllers =
            CONTROLLERS.iter().flat_map(|prefix| self.entries_with_prefix(user, prefix));
        controllers.find_map(|folder| {
            let celsius =
                |file: &str| self.host.read_text(format!("{folder}/{file}"))?.parse().ok();
            let controller_limit =
                || celsius("scaling_critical_temp_threshold").filter(|limit| *limit > 0);
            let limit: u32 = self.rules.hottest_celsius.or_else(controller_limit)?;
            let temperature: u32 =
                celsius("xmc_fpga_temp").filter(|temperature| *temperature >= limit)?;
            Some((Reason::OutOfBounds, format!("its FPGA {temperature} °C, limit {limit} °C")))
        })
    }

    /// Paths of a folder's entries with a name prefix.
    fn entries_with_prefix(
        &self,
        folder: &Path,
        prefix: &'static str,
    ) -> impl Iterator<Item = String> {
        let folder_path = folder.display().to_string();
        let names = self.host.entry_names(folder).into_iter();
        names
            .filter(move |name| name.starts_with(prefix))
            .map(move |name| format!("{folder_path}/{name}"))
    }
}

/// True for 0, `0x0` and empty text.
fn is_zero(text: &str) -> bool {
    text.trim_start_matches("0x").chars().all(|digit| digit == '0')
}
