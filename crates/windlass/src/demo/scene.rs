//! Setup of the demo: machine profile, added devices, and configuration of the agent.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use windlass_config::{Config, DeviceProfile, DraOffer, Find, Policy, SessionLimits};
use windlass_machine::MachineProfile;
use windlass_migrate::{NvidiaPluginFlags, load};

use super::{boards::Boards, cluster::Fleet, defaults, stage::QUIET_PERIOD};
use crate::{cli::DemoArgs, simulated};

/// Parts of the setup. Only boards run already.
pub(super) struct Scene {
    pub(super) profile: MachineProfile,
    pub(super) policy: Policy,
    pub(super) boards: Boards,
    /// Interval of the agent's checks of its kubelet.
    pub(super) check_interval: Duration,
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
            if !args.story.dra && !args.story.cluster {
                defaults::offer_nics(&mut profile, &mut policy);
            }
        }
        if args.story.cluster {
            ensure!(
                profile.gpus.iter().any(|gpu| gpu.mig.is_none()),
                "--cluster needs a machine with a whole NVIDIA GPU, and {} has none",
                profile.name
            );
            Fleet::prepare(&mut policy)?;
        }
        if args.story.dra && policy.dra.offer == DraOffer::Off {
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
        // The story of one node has faults to notice. Beside a cluster the agent checks as seldom as on a real node.
        let check_interval = if args.story.cluster {
            SessionLimits::default().check_interval
        } else {
            QUIET_PERIOD / 10
        };
        Ok(Self { profile, policy, boards, check_interval })
    }
}
