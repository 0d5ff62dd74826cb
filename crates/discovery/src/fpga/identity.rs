//! What an FPGA is to be after it was programmed, and what it says that it is.

use std::collections::BTreeMap;

use windlass_config::FpgaRules;
use windlass_core::{
    device::{Device, DeviceId},
    health::Observation,
    resource::ResourceName,
};
use windlass_host::{
    Host,
    template::{Missing, asked, fill},
};

use super::{Found, alveo, manager, regions, resource};

/// What an FPGA is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FpgaIdentity {
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
pub enum NotIt {
    /// It says nothing; a board that was programmed a moment ago may soon.
    Silent,
    /// It is what it is to be, and not ready; it may be soon.
    NotReady(String),
    /// It says something else.
    Other(String),
}

// === impl FpgaIdentity ===

impl FpgaIdentity {
    /// What a device is to be by what is known of it now; `None` where nothing is.
    pub fn of(rules: &FpgaRules, device: &Device) -> Result<Option<Self>, Missing> {
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
    #[must_use]
    pub fn or_settled(self, earlier: Option<&Self>) -> Self {
        earlier.filter(|earlier| earlier.rules == self.rules).cloned().unwrap_or(self)
    }

    /// Asks the FPGA. Blocks, for ever if its firmware does not answer.
    pub fn check(&self, host: &Host) -> Result<(), NotIt> {
        let (device, does) = self.found(host).ok_or(NotIt::Silent)?;
        match &self.wanted {
            Wanted::Resource(wanted) => {
                let said = resource(&device).ok_or(NotIt::Silent)?;
                if said != *wanted {
                    return Err(NotIt::Other(format!("it is {said}, and not {wanted}")));
                }
            }
            Wanted::Attributes(wanted) => {
                wanted.iter().try_for_each(|(name, text)| says(&device, name, text))?;
            }
        }
        match does {
            Observation::Failed(_, why) | Observation::Fault(_, why) => Err(NotIt::NotReady(why)),
            Observation::Passed | Observation::Overdue(_) | Observation::Awaited => Ok(()),
        }
    }

    /// The device as it is now. Others are not asked: one that does not answer costs no other anything.
    fn found(&self, host: &Host) -> Option<Found> {
        let boards = alveo::boards(host).into_values();
        let is_its = |board: &alveo::Board| board.device().is_some_and(|it| it.id == self.id);
        let board = || boards.filter(is_its).find_map(|board| board.look(host, &self.rules));
        let region = || regions::asked(host, self.rules.mode, &self.id);
        board().or_else(region).or_else(|| manager::asked(host, &self.rules.nodes, &self.id))
    }
}

fn says(device: &Device, name: &str, wanted: &str) -> Result<(), NotIt> {
    let said = fill(&asked(name), device).map_err(|_: Missing| NotIt::Silent)?;
    let other = || NotIt::Other(format!("its {name} is {said}, and not {wanted}"));
    if said == wanted { Ok(()) } else { Err(other()) }
}
