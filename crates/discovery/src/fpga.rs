//! FPGAs: Alveo boards under XRT, boards in regions under Linux' DFL or Intel's OPAE driver, and the
//! logic beside the processors of a Zynq or another system on a chip.
//!
//! A board that is being programmed or reset says less of itself than before. It stays what it was last,
//! not ready, under the resource it is known by; one that never said what it is belongs to none.

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
use windlass_host::{Host, external::Late};

pub use identity::{FpgaIdentity, NotIt};
pub(super) use names::resource;

use self::{manager::Managers, regions::Regions};
use super::{
    asking::Asking,
    crowds::Crowds,
    family::{Family, Look, PCI},
    trouble,
};

/// The family.
#[derive(Debug, Default)]
pub(super) struct Fpga {
    rules: FpgaRules,
    /// What each device said of itself when it was ready last.
    known: BTreeMap<DeviceId, Attributes>,
    /// The boards, as each was seen last.
    boards: BTreeMap<DeviceId, Device>,
    /// The serial numbers of cards of which it is known what boards they have.
    whole: BTreeSet<String>,
    asking: Asking<PciAddress, Option<Found>>,
    regions: Regions,
    managers: Managers,
}

/// A device, and how it does.
type Found = (Device, Observation);

/// What boards of one card have in common.
const SERIAL: AttributeName = AttributeName::new("amd.com", "serialNumber");

/// How many FPGAs a card has.
const FPGAS: AttributeName = AttributeName::new("amd.com", "fpgas");

const UNKNOWN: &str =
    "what it is programmed with is not known, and so not what it can be asked for as";

// === impl Fpga ===

impl Family for Fpga {
    fn names(&self) -> Vec<SourceName> {
        vec![SourceName::FPGA]
    }

    fn folders(&self) -> &'static [&'static str] {
        &[PCI, "/sys/class/fpga", manager::REGIONS, manager::MANAGERS]
    }

    fn look(&mut self, host: &Host) -> Look {
        let mut found = self.asked(host);
        self.remember(&mut found);
        match self.rules.unit {
            FpgaUnit::Card => {
                self.judge_wholeness(&mut found);
                found = cards(self.with_absent(found));
            }
            FpgaUnit::Board => self.boards = by_id(&found),
        }
        let mut crowds = Crowds::default();
        let mut others = self.regions.devices(host, &mut crowds, self.rules.mode);
        others.extend(self.managers.devices(host, &mut crowds, &self.rules.nodes));
        self.remember(&mut others);
        found.extend(others);
        for (index, (device, _)) in (0..).zip(&mut found) {
            device.index = index;
        }
        let state = state(found.len(), &crowds);
        Look { states: [(SourceName::FPGA, state)].into(), found, ..Look::default() }
    }

    fn adopt(&mut self, policy: &Policy) {
        self.rules.clone_from(&policy.families.fpga);
    }
}

impl Fpga {
    /// The boards, each asked by itself: one that does not answer stays what it was last.
    fn asked(&mut self, host: &Host) -> Vec<Found> {
        let (mut found, mut there) = (Vec::new(), BTreeSet::new());
        for (address, board) in alveo::boards(host) {
            there.insert(address);
            let Some(bare) = board.device() else { continue };
            let (host, rules) = (host.clone(), self.rules.clone());
            let looked = self.asking.ask(address, move || board.look(&host, &rules));
            found.extend(looked.unwrap_or_else(|Late| {
                let last = self.boards.get(&bare.id).cloned();
                Some((last.unwrap_or(bare), no_answer()))
            }));
        }
        self.asking.rest(|address| there.contains(address));
        found
    }

    /// A board that has not answered since the agent started may be of any card that was never seen without
    /// such a board there: none of these is handed out, for it may be a part of one.
    fn judge_wholeness(&mut self, found: &mut [Found]) {
        let is_unclear = |(board, says): &Found| serial(board).is_none() && *says == no_answer();
        if !found.iter().any(is_unclear) {
            let serials = found.iter().filter_map(|(board, _)| serial(board));
            self.whole = serials.map(str::to_owned).collect();
            return;
        }
        for (board, says) in found {
            let is_partial = serial(board).is_some_and(|of| !self.whole.contains(of));
            if is_partial && *says == Observation::Passed {
                *says = not_ready("a board that does not answer may be a part of it");
            }
        }
    }

    /// Adds the boards that are absent from cards of which another is there: a card is handed out whole
    /// or not at all. A card of which nothing is there is forgotten.
    fn with_absent(&mut self, found: Vec<Found>) -> Vec<Found> {
        let there: BTreeSet<_> = found.iter().filter_map(|(board, _)| serial(board)).collect();
        self.boards.retain(|_, board| serial(board).is_some_and(|of| there.contains(of)));
        let mut boards: BTreeMap<_, _> = std::mem::take(&mut self.boards)
            .into_iter()
            .map(|(id, board)| (id, (board, not_ready("an FPGA of the card is not there"))))
            .collect();
        boards.extend(found.into_iter().map(|(board, says)| (board.id.clone(), (board, says))));
        let boards: Vec<_> = boards.into_values().collect();
        self.boards = by_id(&boards);
        boards
    }

    fn remember(&mut self, found: &mut [Found]) {
        for (device, _) in found {
            self.complete(device);
        }
    }

    /// Fills in what the device does not say for the moment.
    fn complete(&mut self, device: &mut Device) {
        let known = self.known.get(&device.id).and_then(|known| known.get(&SERIAL));
        if let Some(serial) = known.filter(|_| !device.attributes.contains_key(&SERIAL)) {
            device.attributes.insert(SERIAL, serial.clone());
        }
        if resource(device).is_some() {
            self.known.insert(device.id.clone(), device.attributes.clone());
        } else if let Some(known) = self.known.get(&device.id) {
            let told = std::mem::take(&mut device.attributes);
            device.attributes = known.clone().into_iter().chain(told).collect();
        } else {
            device.withheld = Some(UNKNOWN.to_owned());
        }
    }
}

fn state(fpgas: usize, crowds: &Crowds) -> SourceState {
    let more = crowds.to_string();
    let more = if more.is_empty() { more } else { format!("; {more}") };
    match fpgas {
        0 => SourceState::Absent(format!("no driver shows an FPGA{more}")),
        1 => SourceState::Ready(format!("1 FPGA{more}")),
        several => SourceState::Ready(format!("{several} FPGAs{more}")),
    }
}

fn by_id(boards: &[Found]) -> BTreeMap<DeviceId, Device> {
    boards.iter().map(|(board, _)| (board.id.clone(), board.clone())).collect()
}

/// The serial number; a board without one is a card of its own.
fn serial(board: &Device) -> Option<&str> {
    board.text(&SERIAL)
}

/// What a card is called, whichever of its boards answers first.
fn card_id(serial: &str) -> Option<DeviceId> {
    let is_allowed = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    let letters = serial.chars().map(|letter| if is_allowed(letter) { letter } else { '-' });
    format!("{}-card-{}", SourceName::FPGA, letters.collect::<String>()).parse().ok()
}

/// Boards with one serial number as one device, which is as well as the worst of them.
fn cards(boards: Vec<Found>) -> Vec<Found> {
    let mut cards: Vec<Found> = Vec::new();
    for (mut board, observation) in boards {
        if let Some(id) = serial(&board).and_then(card_id) {
            board.id = id;
        }
        match cards.iter_mut().find(|(card, _)| card.id == board.id) {
            None => cards.push((board, observation)),
            Some((card, worst)) => {
                join(card, board);
                if *worst == Observation::Passed {
                    *worst = observation;
                }
            }
        }
    }
    cards
}

fn join(card: &mut Device, board: Device) {
    let before = match card.attributes.get(&FPGAS) {
        Some(AttributeValue::Int(count)) => *count,
        _ => 1,
    };
    card.attributes.insert(FPGAS, AttributeValue::Int(before + 1));
    card.nodes.extend(board.nodes);
    card.withheld = card.withheld.take().or(board.withheld);
}

/// Whether an identifier is one: a crashed firmware gives nothing but `f`.
fn is_identifier(text: &str) -> bool {
    !text.is_empty() && !text.chars().all(|digit| digit.eq_ignore_ascii_case(&'f'))
}

/// It did not answer in time.
fn no_answer() -> Observation {
    trouble::observation(Some(trouble::no_answer()))
}

fn not_ready(detail: impl Into<String>) -> Observation {
    Observation::Failed(Reason::NotReady, detail.into())
}
