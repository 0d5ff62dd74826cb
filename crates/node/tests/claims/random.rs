//! Pods of the device plugin and pods with claims, side by side and at random: no device is ever in two
//! hands.
//!
//! `WINDLASS_RANDOM_SECONDS` runs it for longer, `WINDLASS_RANDOM_SEED` again as it was.

use std::{
    env,
    time::{Duration, Instant},
};

use windlass_cluster_sim::{cluster::Scheduled, node as bound};
use windlass_kubelet_sim::{Container, Pod};
use windlass_node::config::DraOffer;

use crate::{
    wish::{SPACE, gpus, pod, template},
    world::{NODE, World, uid},
};

/// What the device plugin calls its GPUs.
const RESOURCE: &str = "nvidia.com/gpu";

/// How many pods live at once at most: more than there are GPUs.
const MOST: usize = 12;

/// Numbers that come again for the same seed.
struct Chance(u64);

/// A pod that was begun.
enum Living {
    /// With a claim; its containers may wait for it.
    Claim(Box<Scheduled>),
    /// With devices of the device plugin, by its UID.
    Plugin(String),
}

/// How often what happened.
#[derive(Debug, Default)]
struct Tally {
    claims: usize,
    refused_claims: usize,
    plugin_pods: usize,
    refused_pods: usize,
    restarts: usize,
}

struct Run {
    world: World,
    chance: Chance,
    living: Vec<Living>,
    begun: usize,
    tally: Tally,
    /// What happened, in order.
    told: Vec<String>,
}

// === impl Chance ===

impl Chance {
    /// The next number of `SplitMix64`.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end.max(1) as u64).expect("less than a usize")
    }
}

// === impl Run ===

impl Run {
    async fn step(&mut self) {
        match self.chance.below(100) {
            0..30 if self.living.len() < MOST => self.begin_claim().await,
            30..60 if self.living.len() < MOST => self.begin_plugin().await,
            60..70 if self.living.len() < MOST => self.begin_both().await,
            96 => self.restart_kubelet().await,
            97 => self.restart_agent().await,
            98 => _ = self.world.objects().wipe_slices(NODE),
            99 => self.lose_api_server().await,
            _ => self.end_one().await,
        }
        self.check();
    }

    fn check(&self) {
        if let Err(why) = self.world.in_one_hand() {
            panic!("{why} after {:#?}", self.told);
        }
        self.world.check();
    }

    fn tell(&mut self, what: String) {
        self.told.push(what);
    }

    fn schedule(&mut self) -> Option<Scheduled> {
        self.begun += 1;
        let (name, count) = (format!("c{}", self.begun), 1 + self.chance.below(3));
        self.world.objects().put(&template(SPACE, &name, &gpus(count)));
        let wanted = pod((SPACE, &name), &["main"], ("resourceClaimTemplateName", &name));
        let scheduled = self.world.cluster.schedule(&wanted).ok();
        if scheduled.is_none() {
            self.world.cluster.delete_pod(SPACE, &name).expect("it waits");
        }
        scheduled
    }

    fn plugin_pod(&mut self) -> Pod {
        self.begun += 1;
        let count = 1 + self.chance.below(3);
        let main = Container::new("main").limit(RESOURCE, count as u64);
        Pod::new(format!("d{}", self.begun)).container(main)
    }

    async fn begin_claim(&mut self) {
        let Some(scheduled) = self.schedule() else { return };
        let started = claim_starts(&self.world, &scheduled).await;
        self.claimed(scheduled, started);
    }

    async fn begin_plugin(&mut self) {
        let pod = self.plugin_pod();
        let uid = pod.uid.clone();
        let admitted = self.world.admit(pod).await.is_ok();
        self.plugged(uid, admitted).await;
    }

    /// One of each at the same time.
    async fn begin_both(&mut self) {
        let pod = self.plugin_pod();
        let uid = pod.uid.clone();
        let Some(scheduled) = self.schedule() else { return };
        let (started, admitted) =
            tokio::join!(claim_starts(&self.world, &scheduled), self.world.admit(pod));
        self.claimed(scheduled, started);
        self.plugged(uid, admitted.is_ok()).await;
    }

    fn claimed(&mut self, scheduled: Scheduled, started: bool) {
        self.tally.claims += usize::from(started);
        self.tally.refused_claims += usize::from(!started);
        let uids = scheduled.claims.iter().filter_map(|claim| claim.metadata.uid.as_deref());
        let uids: Vec<_> = uids.collect();
        self.tell(format!("claim {uids:?} started: {started}"));
        self.living.push(Living::Claim(Box::new(scheduled)));
    }

    async fn plugged(&mut self, uid: String, admitted: bool) {
        self.tally.plugin_pods += usize::from(admitted);
        self.tally.refused_pods += usize::from(!admitted);
        self.tell(format!("{uid} admitted: {admitted}"));
        if admitted {
            let started = self.world.try_start(&uid, "main").await;
            started.expect("what is admitted starts");
            self.living.push(Living::Plugin(uid));
        } else {
            self.world.kubelet.delete(&uid).await;
        }
    }

    async fn end_one(&mut self) {
        if self.living.is_empty() {
            return;
        }
        let index = self.chance.below(self.living.len());
        match self.living.swap_remove(index) {
            Living::Plugin(uid) => {
                self.tell(format!("{uid} ends"));
                self.world.kubelet.delete(&uid).await;
            }
            Living::Claim(scheduled) if self.chance.below(3) == 0 => self.force(&scheduled).await,
            Living::Claim(scheduled) => {
                self.tell(format!("{:?} ends", scheduled.pod.metadata.name));
                self.world.end(&scheduled).await;
            }
        }
    }

    /// The object goes first, and another pod is scheduled to what its containers have still.
    async fn force(&mut self, scheduled: &Scheduled) {
        let name = scheduled.pod.metadata.name.as_deref().unwrap_or_default();
        self.tell(format!("{name} is deleted by force"));
        self.world.cluster.delete_pod(SPACE, name).expect("it was there");
        self.begin_claim().await;
        self.check();
        self.world.kubelet.delete(&uid(scheduled)).await;
    }

    async fn restart_kubelet(&mut self) {
        self.tell("kubelet restarts".to_owned());
        self.tally.restarts += 1;
        self.world.kubelet.restart().await.expect("it restarts");
        self.world.check();
        self.world.registered().await;
    }

    async fn restart_agent(&mut self) {
        self.tell("agent restarts".to_owned());
        self.tally.restarts += 1;
        self.world.kill_agent().await;
        self.world.check();
        self.world.start_agent();
        self.world.registered().await;
    }

    async fn lose_api_server(&mut self) {
        self.tell("API server is away".to_owned());
        self.world.cluster.server_mut().go_away().await;
        self.begin_both().await;
        self.world.check();
        self.world.cluster.server_mut().come_back();
    }

    /// Everything goes, and everything is free.
    async fn end(mut self) -> Tally {
        while !self.living.is_empty() {
            self.end_one().await;
            self.world.check();
        }
        self.world.all_is_released().await;
        self.restart_agent().await;
        self.check();
        assert!(self.world.left().is_empty(), "{:?} is left", self.world.left());
        self.tally
    }
}

async fn claim_starts(world: &World, scheduled: &Scheduled) -> bool {
    world.admit(bound::pod(scheduled)).await.expect("no limits");
    world.try_start(&uid(scheduled), "main").await.is_ok()
}

#[tokio::test]
async fn no_device_is_ever_in_two_hands() {
    let number = |name| env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seconds = number("WINDLASS_RANDOM_SECONDS").unwrap_or(5);
    let seed = number("WINDLASS_RANDOM_SEED").unwrap_or(1);
    let world = World::new(DraOffer::Beside).await;
    let (chance, tally) = (Chance(seed), Tally::default());
    let (living, told) = (Vec::new(), Vec::new());
    let mut run = Run { world, chance, living, begun: 0, tally, told };
    let until = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < until {
        run.step().await;
    }
    let tally = run.end().await;
    assert!(tally.claims > 0 && tally.plugin_pods > 0, "both ways were gone: {tally:?}");
}
