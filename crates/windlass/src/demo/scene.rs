//! Setup of the demo: machine profile, added devices, and configuration of the agent.

use anyhow::{Context as _, Result};
use windlass_config::{Config, DeviceProfile, DraOffer, Find, Policy};
use windlass_machine::MachineProfile;
use windlass_migrate::{NvidiaPluginFlags, load};

use super::{boards::Boards, defaults};
use crate::{cli::DemoArgs, simulated};

/// Parts of the setup. Only boards run already.
pub(super) struct Scene {
    pub(super) profile: MachineProfile,
    pub(super) policy: Policy,
    pub(super) boards: Boards,
}

// === impl Scene ===

impl Scene {
    pub(super) fn of(args: &DemoArgs) -> Result<Self> {
        let mut profile = simulated::profile(&args.machine)?;
        let config = match &args.config {
            Some(file) => load(file, &NvidiaPluginFlags::default())?.config,
            None => Config::default(),
        };
        let mut policy = config.policy;
        if args.config.is_none() && args.device.is_empty() {
            defaults::cut(&mut profile);
            if !args.dra {
                defaults::offer_nics(&mut profile, &mut policy);
            }
        }
        if args.dra && policy.dra.offer == DraOffer::Off {
            policy.dra.offer = DraOffer::Instead;
        }
        let mut boards = Boards::default();
        for device in &args.device {
            let mut rule = device.profile.parse::<DeviceProfile>()?.rule();
            match &mut rule.find {
                Find::Endpoints(endpoints) => {
                    *endpoints = boards.start(device.count).context("no board can be simulated")?;
                }
                _ => profile.attach(device)?,
            }
            policy.sources.push(rule);
        }
        Ok(Self { profile, policy, boards })
    }
}
