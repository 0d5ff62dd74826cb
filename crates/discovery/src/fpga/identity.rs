//! Expected identity of an FPGA after programming, and its check.

use std::collections::BTreeMap;

use windlass_config::FpgaRules;
use windlass_core::{
    device::{Device, DeviceId},
    health::Observation,
    resource::ResourceName,
};
use windlass_host::{
    Host,
    template::{MissingValue, fill, placeholder},
};

use super::{ObservedDevice, alveo, manager, regions, resource};

/// Expected identity of an FPGA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FpgaIdentity {
    id: DeviceId,
    rules: FpgaRules,
    wanted: ExpectedIdentity,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ExpectedIdentity {
    /// The resource that it was offered as.
    Resource(ResourceName),
    /// Attributes that the configuration expects.
    Attributes(BTreeMap<String, String>),
}

/// Mismatch of an FPGA's identity.
#[derive(Debug, PartialEq, Eq)]
pub enum IdentityMismatch {
    /// No identity yet; a freshly programmed board may need time.
    Silent,
    /// The expected identity, but not ready yet.
    NotReady(String),
    /// Another identity.
    Other(String),
}

// === impl FpgaIdentity ===

impl FpgaIdentity {
    /// Expected identity of a device, by its current attributes; `None` if they suffice for none.
    pub fn of(rules: &FpgaRules, device: &Device) -> Result<Option<Self>, MissingValue> {
        let wanted = if rules.expect.is_empty() {
            resource(device).map(ExpectedIdentity::Resource)
        } else {
            let filled = |(name, text): (&String, &String)| Ok((name.clone(), fill(text, device)?));
            let texts = rules.expect.iter().map(filled).collect::<Result<_, _>>()?;
            Some(ExpectedIdentity::Attributes(texts))
        };
        let (id, rules) = (device.id.clone(), rules.clone());
        Ok(wanted.map(|wanted| Self { id, rules, wanted }))
    }

    /// Prefers an earlier identity under the same configuration: a wrongly programmed board has misleading
    /// attributes.
    #[must_use]
    pub fn or_settled(self, earlier: Option<&Self>) -> Self {
        earlier.filter(|earlier| earlier.rules == self.rules).cloned().unwrap_or(self)
    }

    /// Reads the FPGA and compares. Blocks, forever if its firmware hangs.
    pub fn check(&self, host: &Host) -> Result<(), IdentityMismatch> {
        let (device, does) = self.found(host).ok_or(IdentityMismatch::Silent)?;
        match &self.wanted {
            ExpectedIdentity::Resource(wanted) => {
                let actual = resource(&device).ok_or(IdentityMismatch::Silent)?;
                if actual != *wanted {
                    return Err(IdentityMismatch::Other(format!(
                        "it is {actual}, and not {wanted}"
                    )));
                }
            }
            ExpectedIdentity::Attributes(wanted) => {
                wanted.iter().try_for_each(|(name, text)| check_attribute(&device, name, text))?;
            }
        }
        match does {
            Observation::Failed(_, why) | Observation::Fault(_, why) => {
                Err(IdentityMismatch::NotReady(why))
            }
            Observation::Passed | Observation::Overdue(_) | Observation::Awaited => Ok(()),
        }
    }

    /// The device now. Other devices are not read, since they may hang.
    fn found(&self, host: &Host) -> Option<ObservedDevice> {
        let boards = alveo::boards(host).into_values();
        let is_its = |board: &alveo::Board| board.device().is_some_and(|it| it.id == self.id);
        let board = || boards.filter(is_its).find_map(|board| board.observe(host, &self.rules));
        let region = || regions::find(host, self.rules.mode, &self.id);
        board().or_else(region).or_else(|| manager::find(host, &self.rules.nodes, &self.id))
    }
}

fn check_attribute(device: &Device, name: &str, wanted: &str) -> Result<(), IdentityMismatch> {
    let actual =
        fill(&placeholder(name), device).map_err(|_: MissingValue| IdentityMismatch::Silent)?;
    let other = || IdentityMismatch::Other(format!("its {name} is {actual}, and not {wanted}"));
    if actual == wanted { Ok(()) } else { Err(other()) }
}
