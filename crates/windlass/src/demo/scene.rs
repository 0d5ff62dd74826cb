//! What the demo is about: a machine, what is added to it, and what the agent is told of it.

use anyhow::{Context as _, Result};
use windlass_config::{Config, DeviceProfile, DraOffer, DriverName, Find, Policy};
use windlass_machine::Profile;
use windlass_migrate::{PeerFlags, load};

use super::{boards::Boards, playable};
use crate::{cli::DemoArgs, simulated};

/// The parts, before anything runs but the boards.
pub(super) struct Scene {
    pub(super) profile: Profile,
    pub(super) policy: Policy,
    pub(super) driver: DriverName,
    pub(super) boards: Boards,
}

// === impl Scene ===

impl Scene {
    pub(super) fn of(args: &DemoArgs) -> Result<Self> {
        let mut profile = simulated::profile(&args.machine)?;
        let config = match &args.config {
            Some(file) => load(file, &PeerFlags::default())?.config,
            None => Config::default(),
        };
        let (mut policy, driver) = (config.policy, config.dra_driver);
        if args.config.is_none() && args.device.is_empty() {
            playable::cut(&mut profile);
            if !args.dra {
                playable::offer_nics(&mut profile, &mut policy);
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
        Ok(Self { profile, policy, driver, boards })
    }
}
