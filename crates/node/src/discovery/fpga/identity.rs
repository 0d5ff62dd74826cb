//! What an FPGA is to be after it was programmed, and what it says that it is.

use std::collections::BTreeMap;

use windlass_core::{
    device::{Device, DeviceId},
    resource::ResourceName,
};

use super::{
    super::crowds::Crowds, Found, alveo, cards, manager::Managers, regions::Regions, resource,
};
use crate::{
    config::{FpgaRules, FpgaUnit},
    host::{Host, PciIndex},
    template::{Missing, asked, fill},
};

/// What an FPGA is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FpgaIdentity {
    id: DeviceId,
    rules: FpgaRules,
    wanted: Wanted,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Wanted {
    /// What it was offered as.
    Resource(ResourceName),
    /// What the configuration expects of its attributes.
    Attributes(BTreeMap<String, String>),
}

/// Why an FPGA is not what it is to be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotIt {
    /// It says nothing; a board that was programmed a moment ago may soon.
    Silent,
    /// It says something else.
    Other(String),
}

// === impl FpgaIdentity ===

impl FpgaIdentity {
    /// What a device is to be by what is known of it now; `None` where nothing is.
    pub(crate) fn of(rules: &FpgaRules, device: &Device) -> Result<Option<Self>, Missing> {
        let wanted = if rules.expect.is_empty() {
            resource(device).map(Wanted::Resource)
        } else {
            let filled = |(name, text): (&String, &String)| Ok((name.clone(), fill(text, device)?));
            let texts = rules.expect.iter().map(filled).collect::<Result<_, _>>()?;
            Some(Wanted::Attributes(texts))
        };
        let (id, rules) = (device.id.clone(), rules.clone());
        Ok(wanted.map(|wanted| Self { id, rules, wanted }))
    }

    /// What was settled earlier, if it is by the same configuration: a board that was programmed wrongly is
    /// known by what it became.
    pub(crate) fn or_settled(self, earlier: Option<&Self>) -> Self {
        earlier.filter(|earlier| earlier.rules == self.rules).cloned().unwrap_or(self)
    }

    /// Asks the FPGA. Blocks, for ever if its firmware does not answer.
    pub(crate) fn check(&self, host: &Host) -> Result<(), NotIt> {
        let device = self.found(host).ok_or(NotIt::Silent)?;
        match &self.wanted {
            Wanted::Resource(wanted) => {
                let said = resource(&device).ok_or(NotIt::Silent)?;
                let other = || NotIt::Other(format!("it is {said}, and not {wanted}"));
                if said == *wanted { Ok(()) } else { Err(other()) }
            }
            Wanted::Attributes(wanted) => {
                wanted.iter().try_for_each(|(name, text)| says(&device, name, text))
            }
        }
    }

    fn found(&self, host: &Host) -> Option<Device> {
        let is_it = |(device, _): &Found| device.id == self.id;
        let boards = alveo::boards(host, &mut PciIndex::default()).into_values();
        let look = |board: alveo::Board| board.look(host, &self.rules);
        let boards: Vec<_> = match self.rules.unit {
            FpgaUnit::Card => cards(boards.filter_map(look).collect()),
            // Others are not asked: one that does not answer costs no other anything.
            FpgaUnit::Board => {
                let is_its =
                    |board: &alveo::Board| board.device().is_some_and(|it| it.id == self.id);
                boards.filter(is_its).filter_map(look).collect()
            }
        };
        let others = || {
            let mut crowds = Crowds::default();
            let regions = Regions::default().devices(host, &mut crowds, self.rules.mode);
            let managers = Managers::default().devices(host, &mut crowds, &self.rules.nodes);
            regions.into_iter().chain(managers).find(is_it)
        };
        boards.into_iter().find(is_it).or_else(others).map(|(device, _)| device)
    }
}

fn says(device: &Device, name: &str, wanted: &str) -> Result<(), NotIt> {
    let said = fill(&asked(name), device).map_err(|_: Missing| NotIt::Silent)?;
    let other = || NotIt::Other(format!("its {name} is {said}, and not {wanted}"));
    if said == wanted { Ok(()) } else { Err(other()) }
}
