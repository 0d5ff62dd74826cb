//! Setup of the demo: machine profile, added devices, and configuration of the agent.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use windlass_config::{Config, DeviceProfile, DiscoveryRule, DraOffer, KubeletLimits, Policy};
use windlass_machine::MachineProfile;
use windlass_migrate::{NvidiaPluginFlags, load};

use super::{boards::Boards, cluster::Fleet, defaults, testbed::QUIET_PERIOD};
use crate::{cli::DemoArgs, simulated};

/// Inputs of the testbed. Only the boards run already.
pub(super) struct Setup {
    pub(super) profile: MachineProfile,
    pub(super) policy: Policy,
    pub(super) boards: Boards,
    /// Interval at which the agent checks its kubelet.
    pub(super) check_interval: Duration,
}

// === impl Setup ===

impl Setup {
    pub(super) fn from_args(args: &DemoArgs) -> Result<Self> {
        let mut profile = simulated::load_profile(&args.machine)?;
        let config = match &args.config {
            Some(file) => load(file, &NvidiaPluginFlags::default())?.config,
            None => Config::default(),
        };
        let mut policy = config.policy;
        if args.config.is_none() && args.device.is_empty() {
            defaults::create_mig_instances(&mut profile);
            if !args.variant.dra && !args.variant.cluster {
                defaults::offer_nics(&mut profile, &mut policy);
            }
        }
        if args.variant.cluster {
            ensure!(
                profile.gpus.iter().any(|gpu| gpu.mig.is_none()),
                "--cluster needs a machine with a whole NVIDIA GPU, and {} has none",
                profile.name
            );
            Fleet::configure_agent(&mut policy)?;
        }
        if args.variant.dra && policy.dra.offer == DraOffer::Off {
            policy.dra.offer = DraOffer::Instead;
        }
        let mut boards = Boards::default();
        for device in &args.device {
            let mut rule = device.profile.parse::<DeviceProfile>()?.rule();
            match &mut rule.find {
                DiscoveryRule::Endpoints(endpoints) => {
                    *endpoints = boards.start(device.count).context("no board can be simulated")?;
                }
                _ => profile.attach(device)?,
            }
            policy.sources.push(rule);
        }
        // The demo of one node injects faults, so its agent checks often. The cluster demo uses the default interval.
        let check_interval = if args.variant.cluster {
            KubeletLimits::default().check_interval
        } else {
            QUIET_PERIOD / 10
        };
        Ok(Self { profile, policy, boards, check_interval })
    }
}
