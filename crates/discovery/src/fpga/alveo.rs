//! Alveo boards, as XRT's two drivers show them: a user function, which programs work with, and a
//! management function, which programs and resets the board.
//!
//! The two are functions of one PCI device, in an order that changed over time. A virtual machine has
//! the user function alone; a board without a shell has the management function alone. A container gets
//! no node of the latter unless the configuration says so.

use std::{collections::BTreeMap, path::Path};

use jiff::Timestamp;
use windlass_config::FpgaRules;
use windlass_core::{
    attribute::{AttributeName, Attributes},
    device::{Device, DeviceKind, DeviceNode, SourceName},
    health::{Observation, Reason},
    pci::PciAddress,
};
use windlass_host::{FoundNode, Host, PciFunction};

use super::{Found, is_identifier, not_ready};
use crate::{
    facts::{attributes, of_function, text},
    graphics,
    trouble::{self, Trouble},
};

pub(super) const DOMAIN: &str = "amd.com";
const SHELL_NAME: &str = "shell";
const TIMESTAMP_NAME: &str = "shellTimestamp";

/// The shell's name: vendor, board, name and version.
pub(super) const SHELL: AttributeName = AttributeName::new(DOMAIN, SHELL_NAME);

/// When the shell was made.
pub(super) const SHELL_TIMESTAMP: AttributeName = AttributeName::new(DOMAIN, TIMESTAMP_NAME);

/// AMD (once Xilinx), Arista, Amazon, Advantech: who builds such boards.
const VENDORS: [&str; 4] = ["10ee", "3475", "1d0f", "13fe"];

/// Files by which XRT's drivers mark what a function is for.
const USER: &str = "user_pf";
const MANAGEMENT: &str = "mgmt_pf";

/// Where boards keep their serial number and what they measure: the satellite controller's folder, and that
/// of newer boards.
const CONTROLLERS: [&str; 2] = ["xmc.u.", "hwmon_sdm.u."];

/// The folder of the engine that streams data, and the nodes that belong to it.
const QDMA: &str = "dma.qdma.u";

/// A board while it is looked at.
#[derive(Debug, Default)]
pub(super) struct Board {
    user: Option<PciFunction>,
    management: Option<PciFunction>,
}

/// The host while it is looked at, and what the configuration says.
struct Seen<'a> {
    host: &'a Host,
    rules: &'a FpgaRules,
}

/// The boards of the host, by where they sit. None of them is asked for anything.
pub(super) fn boards(host: &Host) -> BTreeMap<PciAddress, Board> {
    let mut boards: BTreeMap<PciAddress, Board> = BTreeMap::new();
    for function in host.pci_functions(|it| it.is_of_vendor(&VENDORS)) {
        let is = |mark: &str| host.has(function.folder().join(mark));
        let (is_user, is_management) = (is(USER), is(MANAGEMENT));
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
    /// The device that it is, with nothing that it would have to say itself.
    pub(super) fn device(&self) -> Option<Device> {
        let shown = self.shown()?;
        let address = shown.address.first_function().to_string().replace([':', '.'], "-");
        let id = format!("{}-{address}", SourceName::FPGA).parse().ok()?;
        let new = Device::new(id, DeviceKind::Fpga, SourceName::FPGA, Timestamp::UNIX_EPOCH);
        Some(Device { place: shown.place(), folder: Some(shown.folder()), ..new })
    }

    /// Asks it for everything. May take for ever: its firmware answers some of it, and not while it is reset.
    pub(super) fn look(&self, host: &Host, rules: &FpgaRules) -> Option<Found> {
        let (device, seen) = (self.device()?, Seen { host, rules });
        let (nodes, attributes) = (seen.nodes(self), seen.attributes(self, self.shown()?));
        let observation = seen.observe(self, &nodes);
        Some((Device { attributes, nodes, ..device }, observation))
    }

    fn shown(&self) -> Option<&PciFunction> {
        self.user.as_ref().or(self.management.as_ref())
    }
}

// === impl Seen ===

impl Seen<'_> {
    fn attributes(&self, board: &Board, shown: &PciFunction) -> Attributes {
        let user = board.user.as_ref().map(PciFunction::folder);
        let shell = user.as_deref().and_then(|folder| self.shell(folder));
        let (name, timestamp) = shell.unzip();
        let uuid = user.as_deref().and_then(|folder| self.logic_uuid(folder));
        let serial = user.as_deref().and_then(|folder| self.serial(folder));
        let management = board.management.as_ref();
        let own = attributes(
            DOMAIN,
            [
                ("type", text("alveo")),
                (SHELL_NAME, name.and_then(text)),
                (TIMESTAMP_NAME, timestamp.and_then(text)),
                ("logicUuid", uuid.and_then(text)),
                ("serialNumber", serial.and_then(text)),
                ("deviceID", shown.device.as_ref().and_then(text)),
                ("managementFunction", management.and_then(|of| text(of.address.to_string()))),
            ],
        );
        own.into_iter().chain(of_function(self.host, shown)).collect()
    }

    /// The shell's name and when it was made. The number of the folder changes when a board is reset.
    fn shell(&self, user: &Path) -> Option<(String, String)> {
        let mut roms = self.below(user, "rom");
        roms.find_map(|rom| {
            let said = |file: &str| self.host.text(format!("{rom}/{file}"));
            let (name, timestamp) = (said("VBNV")?, said("timestamp")?);
            (is_identifier(&name) && is_identifier(&timestamp)).then_some((name, timestamp))
        })
    }

    /// The identifier of the logic on the board; of several layers that of the last, as in the names of
    /// AMD's plugin.
    fn logic_uuid(&self, user: &Path) -> Option<String> {
        let text = self.host.text(user.join("logic_uuids"))?;
        text.lines().last().map(|line| line.trim().to_owned())
    }

    fn serial(&self, user: &Path) -> Option<String> {
        let mut folders = CONTROLLERS.iter().flat_map(|begin| self.below(user, begin));
        let said = |folder: String| self.host.text(format!("{folder}/serial_num"));
        folders.find_map(|folder| said(folder).filter(|serial| !serial.is_empty()))
    }

    fn nodes(&self, board: &Board) -> Vec<DeviceNode> {
        let user = board.user.iter().flat_map(|user| self.user_nodes(user));
        let management = board.management.as_ref().filter(|_| self.rules.management_nodes);
        user.chain(management.and_then(|function| self.management_node(function))).collect()
    }

    fn user_nodes(&self, user: &PciFunction) -> Vec<DeviceNode> {
        let folder = user.folder();
        let folder = self.host.followed(&folder).unwrap_or(folder);
        let render = graphics::nodes(self.host, &folder).into_iter().filter(graphics::is_render);
        let is_engine = |found: &FoundNode| found.name.starts_with(QDMA);
        let engine = self.host.nodes_of(&folder).into_iter().find(is_engine).map(|it| it.node);
        // Older drivers make the node without telling sysfs of it.
        let named = || DeviceNode::new(format!("/dev/xfpga/{QDMA}{}.0", user.address.number()));
        let has_engine = self.below(&folder, QDMA).next().is_some();
        render.chain(engine.or_else(|| has_engine.then(named))).collect()
    }

    fn management_node(&self, function: &PciFunction) -> Option<DeviceNode> {
        let instance = self.host.text(function.folder().join("instance"))?;
        let is_number = instance.bytes().all(|byte| byte.is_ascii_digit());
        (is_number && !instance.is_empty())
            .then(|| DeviceNode::new(format!("/dev/xclmgmt{instance}")))
    }

    fn observe(&self, board: &Board, nodes: &[DeviceNode]) -> Observation {
        let Some(user) = &board.user else {
            return not_ready("it has a management function alone: it has no shell");
        };
        let folder = user.folder();
        if self.shell(&folder).is_none() {
            return not_ready("it does not say what shell it has");
        }
        if self.logic_uuid(&folder).is_some_and(|uuid| !is_identifier(&uuid)) {
            return not_ready("its logic has no identifier but f: its firmware crashed");
        }
        if self.host.text(folder.join("ready")).is_some_and(|ready| is_zero(&ready)) {
            return not_ready("its driver says that it is not ready");
        }
        let functions = [Some(user), board.management.as_ref()];
        let firewall = functions.into_iter().flatten().find_map(|function| self.firewall(function));
        let power = || self.power(&folder);
        let heat = || self.heat(&folder).or_else(|| trouble::of_heat(self.host, &folder));
        let trouble = firewall.or_else(power).or_else(heat);
        trouble::observation(trouble.or_else(|| trouble::of_nodes(self.host, nodes)))
    }

    /// A firewall between board and host that has cut off a program's faulty transfer stays shut until
    /// the board is reset.
    fn firewall(&self, function: &PciFunction) -> Option<Trouble> {
        let folder = function.folder();
        let mut firewalls = self.below(&folder, "firewall.");
        let level = firewalls.find_map(|folder| {
            self.host.text(format!("{folder}/detected_level")).filter(|level| !is_zero(level))
        })?;
        Some((Reason::NeedsReset, format!("its firewall tripped at level {level}")))
    }

    fn power(&self, user: &Path) -> Option<Trouble> {
        let mut controllers = self.below(user, CONTROLLERS[0]);
        let warns = |folder: String| {
            self.host.text(format!("{folder}/xmc_power_warn")).is_some_and(|says| !is_zero(&says))
        };
        let detail = "its power draw is beyond what the board allows".to_owned();
        controllers.any(warns).then_some((Reason::OutOfBounds, detail))
    }

    /// XRT's drivers show no limit beside the sensors (`xmc.c`, `hwmon_sdm.c`). The controller of some boards
    /// tells at what it stops the clocks; most say `N/A` there, or nothing.
    fn heat(&self, user: &Path) -> Option<Trouble> {
        let mut controllers = CONTROLLERS.iter().flat_map(|begin| self.below(user, begin));
        controllers.find_map(|folder| {
            let celsius = |file: &str| self.host.text(format!("{folder}/{file}"))?.parse().ok();
            let own = || celsius("scaling_critical_temp_threshold").filter(|limit| *limit > 0);
            let limit: u32 = self.rules.hottest_celsius.or_else(own)?;
            let now: u32 = celsius("xmc_fpga_temp").filter(|now| *now >= limit)?;
            Some((Reason::OutOfBounds, format!("its FPGA {now} °C, limit {limit} °C")))
        })
    }

    /// What lies in a folder and begins so.
    fn below(&self, folder: &Path, begin: &'static str) -> impl Iterator<Item = String> {
        let at = folder.display().to_string();
        let names = self.host.names(folder).into_iter();
        names.filter(move |name| name.starts_with(begin)).map(move |name| format!("{at}/{name}"))
    }
}

/// Whether a number is 0, `0x0` or nothing.
fn is_zero(text: &str) -> bool {
    text.trim_start_matches("0x").chars().all(|digit| digit == '0')
}
