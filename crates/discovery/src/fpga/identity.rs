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
    expected: ExpectedIdentity,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ExpectedIdentity {
    /// Resource under which the FPGA was offered.
    Resource(ResourceName),
    /// Attributes that the configuration expects.
    Attributes(BTreeMap<String, String>),
}

/// Mismatch of an FPGA's identity.
#[derive(Debug, PartialEq, Eq)]
pub enum IdentityMismatch {
    /// The FPGA reports no identity yet; it may need time after programming.
    NoIdentity,
    /// The FPGA has the expected identity, but is not ready yet, for this reason.
    NotReady(String),
    /// The FPGA has another identity, which the text describes.
    WrongIdentity(String),
}

// === impl FpgaIdentity ===

impl FpgaIdentity {
    /// Expected identity of a device, from the configuration, else from the device's current resource. `None` if the
    /// device has neither.
    ///
    /// # Errors
    ///
    /// Fails if a configured text needs an attribute that the device lacks.
    pub fn for_device(rules: &FpgaRules, device: &Device) -> Result<Option<Self>, MissingValue> {
        let expected = if rules.expect.is_empty() {
            resource(device).map(ExpectedIdentity::Resource)
        } else {
            let fill_text =
                |(name, text): (&String, &String)| Ok((name.clone(), fill(text, device)?));
            let texts = rules.expect.iter().map(fill_text).collect::<Result<_, _>>()?;
            Some(ExpectedIdentity::Attributes(texts))
        };
        let (id, rules) = (device.id.clone(), rules.clone());
        Ok(expected.map(|expected| Self { id, rules, expected }))
    }

    /// Returns the earlier identity, if it has the same configuration, and this one otherwise. A wrongly programmed
    /// board reports attributes of the wrong program.
    #[must_use]
    pub fn or_earlier(self, earlier: Option<&Self>) -> Self {
        earlier.filter(|earlier| earlier.rules == self.rules).cloned().unwrap_or(self)
    }

    /// Reads the FPGA and compares its identity. Blocks, forever if its firmware hangs.
    pub fn check(&self, host: &Host) -> Result<(), IdentityMismatch> {
        let (device, observation) = self.read(host).ok_or(IdentityMismatch::NoIdentity)?;
        match &self.expected {
            ExpectedIdentity::Resource(expected) => {
                let actual = resource(&device).ok_or(IdentityMismatch::NoIdentity)?;
                if actual != *expected {
                    return Err(IdentityMismatch::WrongIdentity(format!(
                        "it is {actual}, and not {expected}"
                    )));
                }
            }
            ExpectedIdentity::Attributes(expected) => {
                expected
                    .iter()
                    .try_for_each(|(name, text)| check_attribute(&device, name, text))?;
            }
        }
        match observation {
            Observation::Failed(_, reason) | Observation::Fault(_, reason) => {
                Err(IdentityMismatch::NotReady(reason))
            }
            Observation::Passed | Observation::TimedOut(_) | Observation::Pending => Ok(()),
        }
    }

    /// Reads the device. Other devices are not read, since they may hang.
    fn read(&self, host: &Host) -> Option<ObservedDevice> {
        let boards = alveo::boards(host).into_values();
        let has_id =
            |board: &alveo::Board| board.device().is_some_and(|device| device.id == self.id);
        let board = || boards.filter(has_id).find_map(|board| board.observe(host, &self.rules));
        let region = || regions::find(host, self.rules.mode, &self.id);
        board().or_else(region).or_else(|| manager::find(host, &self.rules.nodes, &self.id))
    }
}

fn check_attribute(device: &Device, name: &str, expected: &str) -> Result<(), IdentityMismatch> {
    let actual =
        fill(&placeholder(name), device).map_err(|_: MissingValue| IdentityMismatch::NoIdentity)?;
    let mismatch =
        || IdentityMismatch::WrongIdentity(format!("its {name} is {actual}, and not {expected}"));
    if actual == expected { Ok(()) } else { Err(mismatch()) }
}
