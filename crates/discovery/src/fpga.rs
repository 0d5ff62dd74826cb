//! FPGAs: Alveo boards (XRT), boards with regions (Linux DFL, Intel OPAE), and programmable logic of Zynq and
//! other systems on a chip.
//!
//! A board reports fewer attributes while it is programmed or reset. It then keeps its last attributes and its
//! resource, and is not ready. A board that never reported its function is withheld.

mod alveo;
mod identity;
mod manager;
mod names;
mod regions;

use std::collections::{BTreeMap, BTreeSet};

use windlass_config::{FpgaRules, FpgaUnit, Policy};
use windlass_core::{
    attribute::{AttributeName, AttributeValue, Attributes},
    device::{Device, DeviceId, SourceName},
    health::{Observation, Reason},
    inventory::SourceState,
    pci::PciAddress,
};
use windlass_host::{
    Host, PCI_DEVICES,
    entry_limits::EntryLimits,
    external::{DeadlineExceeded, ScanPool},
};

pub use identity::{FpgaIdentity, IdentityMismatch};
pub(super) use names::resource;

use self::{manager::Managers, regions::Regions};
use super::{
    facts::count_text,
    failure,
    scanner::{Scan, Scanner},
};

#[derive(Debug, Default)]
pub(super) struct Fpga {
    rules: FpgaRules,
    /// Last attributes of each device that determined its resource.
    last_attributes: BTreeMap<DeviceId, Attributes>,
    /// Boards of the last scan.
    boards: BTreeMap<DeviceId, Device>,
    /// Serial numbers of the cards in the last scan in which no unresponsive board lacked a serial number.
    complete_cards: BTreeSet<String>,
    pool: ScanPool<PciAddress, Option<ObservedDevice>>,
    regions: Regions,
    managers: Managers,
}

type ObservedDevice = (Device, Observation);

/// Serial number, common to the boards of a card.
const SERIAL: AttributeName = AttributeName::new("amd.com", "serialNumber");

/// Number of FPGAs of a card.
const FPGAS: AttributeName = AttributeName::new("amd.com", "fpgas");

const UNKNOWN_FUNCTION: &str = "its programmed function is unknown, and so is its resource";

// === impl Fpga ===

impl Scanner for Fpga {
    fn names(&self) -> Vec<SourceName> {
        vec![SourceName::FPGA]
    }

    fn folders(&self) -> &'static [&'static str] {
        &[PCI_DEVICES, "/sys/class/fpga", manager::REGIONS, manager::MANAGERS]
    }

    fn scan(&mut self, host: &Host) -> Scan {
        let mut devices = self.read(host);
        self.restore_attributes(&mut devices);
        match self.rules.unit {
            FpgaUnit::Card => {
                self.mark_incomplete_cards(&mut devices);
                devices = merge_cards(self.with_missing_boards(devices));
            }
            FpgaUnit::Board => self.boards = by_id(&devices),
        }
        let mut limits = EntryLimits::default();
        let mut logic_devices = self.regions.devices(host, &mut limits, self.rules.mode);
        logic_devices.extend(self.managers.devices(host, &mut limits, &self.rules.nodes));
        self.restore_attributes(&mut logic_devices);
        devices.extend(logic_devices);
        for (index, (device, _)) in (0..).zip(&mut devices) {
            device.index = index;
        }
        let state = state(devices.len(), &limits);
        Scan { states: [(SourceName::FPGA, state)].into(), devices, ..Scan::default() }
    }

    fn apply_policy(&mut self, policy: &Policy) {
        self.rules.clone_from(&policy.families.fpga);
    }
}

impl Fpga {
    /// Alveo boards, each read with a deadline. A board that misses it keeps its last attributes.
    fn read(&mut self, host: &Host) -> Vec<ObservedDevice> {
        let (mut boards, mut addresses) = (Vec::new(), BTreeSet::new());
        for (address, board) in alveo::boards(host) {
            addresses.insert(address);
            let Some(device) = board.device() else { continue };
            let (host, rules) = (host.clone(), self.rules.clone());
            let result = self.pool.call(address, move || board.observe(&host, &rules));
            boards.extend(result.unwrap_or_else(|DeadlineExceeded| {
                let last_device = self.boards.get(&device.id).cloned();
                Some((last_device.unwrap_or(device), unresponsive()))
            }));
        }
        self.pool.end_scan(|address| addresses.contains(address));
        boards
    }

    /// Marks possibly incomplete cards as not ready: an unresponsive board without a serial number may belong to any
    /// card outside `complete_cards`.
    fn mark_incomplete_cards(&mut self, boards: &mut [ObservedDevice]) {
        let has_unknown_card = |(board, observation): &ObservedDevice| {
            serial(board).is_none() && *observation == unresponsive()
        };
        if !boards.iter().any(has_unknown_card) {
            let serials = boards.iter().filter_map(|(board, _)| serial(board));
            self.complete_cards = serials.map(str::to_owned).collect();
            return;
        }
        for (board, observation) in boards {
            let is_partial = serial(board)
                .is_some_and(|serial_number| !self.complete_cards.contains(serial_number));
            if is_partial && *observation == Observation::Passed {
                *observation = not_ready("a board that does not answer may be a part of it");
            }
        }
    }

    /// Adds the missing boards of present cards as not ready, since a card is allocated as a whole. Removes a card
    /// once all its boards are missing.
    fn with_missing_boards(&mut self, observed_boards: Vec<ObservedDevice>) -> Vec<ObservedDevice> {
        let serials: BTreeSet<_> =
            observed_boards.iter().filter_map(|(board, _)| serial(board)).collect();
        self.boards.retain(|_, board| {
            serial(board).is_some_and(|serial_number| serials.contains(serial_number))
        });
        let mut boards: BTreeMap<_, _> = std::mem::take(&mut self.boards)
            .into_iter()
            .map(|(id, board)| (id, (board, not_ready("an FPGA of the card is not there"))))
            .collect();
        boards.extend(
            observed_boards
                .into_iter()
                .map(|(board, observation)| (board.id.clone(), (board, observation))),
        );
        let boards: Vec<_> = boards.into_values().collect();
        self.boards = by_id(&boards);
        boards
    }

    /// Restores attributes that devices do not report now, and stores attributes that determine a resource.
    fn restore_attributes(&mut self, devices: &mut [ObservedDevice]) {
        for (device, _) in devices {
            self.restore_device_attributes(device);
        }
    }

    fn restore_device_attributes(&mut self, device: &mut Device) {
        let last_serial = self.last_attributes.get(&device.id).and_then(|last| last.get(&SERIAL));
        if let Some(serial) = last_serial.filter(|_| !device.attributes.contains_key(&SERIAL)) {
            device.attributes.insert(SERIAL, serial.clone());
        }
        if resource(device).is_some() {
            self.last_attributes.insert(device.id.clone(), device.attributes.clone());
        } else if let Some(last_attributes) = self.last_attributes.get(&device.id) {
            let current = std::mem::take(&mut device.attributes);
            device.attributes = last_attributes.clone().into_iter().chain(current).collect();
        } else {
            device.withheld = Some(UNKNOWN_FUNCTION.to_owned());
        }
    }
}

fn state(fpgas: usize, limits: &EntryLimits) -> SourceState {
    let limit_note = limits.to_string();
    let limit_note = if limit_note.is_empty() { limit_note } else { format!("; {limit_note}") };
    match fpgas {
        0 => SourceState::Absent(format!("no driver shows an FPGA{limit_note}")),
        count => SourceState::Ready(count_text(count, "FPGA") + &limit_note),
    }
}

fn by_id(boards: &[ObservedDevice]) -> BTreeMap<DeviceId, Device> {
    boards.iter().map(|(board, _)| (board.id.clone(), board.clone())).collect()
}

/// Serial number of a board. A board without one is a card of its own.
fn serial(board: &Device) -> Option<&str> {
    board.text_attribute(&SERIAL)
}

/// Device id of a card, from its serial number: the id does not depend on the order in which boards answer.
fn card_id(serial: &str) -> Option<DeviceId> {
    let is_allowed = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    let letters = serial.chars().map(|letter| if is_allowed(letter) { letter } else { '-' });
    format!("{}-card-{}", SourceName::FPGA, letters.collect::<String>()).parse().ok()
}

/// Boards of one serial number as one device, with the worst observation.
fn merge_cards(boards: Vec<ObservedDevice>) -> Vec<ObservedDevice> {
    let mut cards: Vec<ObservedDevice> = Vec::new();
    for (mut board, observation) in boards {
        if let Some(id) = serial(&board).and_then(card_id) {
            board.id = id;
        }
        match cards.iter_mut().find(|(card, _)| card.id == board.id) {
            None => cards.push((board, observation)),
            Some((card, worst)) => {
                add_board(card, board);
                if *worst == Observation::Passed {
                    *worst = observation;
                }
            }
        }
    }
    cards
}

fn add_board(card: &mut Device, board: Device) {
    let fpga_count = match card.attributes.get(&FPGAS) {
        Some(AttributeValue::Int(count)) => *count,
        _ => 1,
    };
    card.attributes.insert(FPGAS, AttributeValue::Int(fpga_count + 1));
    card.nodes.extend(board.nodes);
    card.withheld = card.withheld.take().or(board.withheld);
}

/// True for a valid identifier. Crashed firmware reports a text of `f` digits only.
fn is_identifier(text: &str) -> bool {
    !text.is_empty() && !text.chars().all(|digit| digit.eq_ignore_ascii_case(&'f'))
}

/// Observation of a device that missed its deadline.
fn unresponsive() -> Observation {
    failure::observation(Some(failure::unresponsive()))
}

fn not_ready(detail: impl Into<String>) -> Observation {
    Observation::Failed(Reason::NotReady, detail.into())
}
