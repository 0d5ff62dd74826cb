//! What an API server does to the agent while pods come: it is away, refuses, is late, and lies.

use std::time::Duration;

use anyhow::{Context as _, Result};
use k8s_openapi::api::{core::v1::Node, resource::v1::ResourceSlice};
use serde::Serialize;
use tokio::time::{Instant, sleep};
use windlass_cluster_sim::api::{ApiServer, Effect, Fault, Gate, Objects, Refusal};

use super::{invariant::Broken, rig::GLANCE, run::Run, strike::RECOVERY_LIMIT};

/// What it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Mischief {
    /// It refuses connections.
    Away,
    /// It answers 500 to everything.
    Fails,
    /// It answers 429 to everything.
    Overloaded,
    /// It answers late.
    Slow,
    /// It cuts connections instead of answering.
    Drops,
    /// It does what it is asked, and cuts the connection.
    LosesAnswers,
    /// It answers 409 to each write.
    Conflicts,
    /// It answers 403 to each write of a slice.
    ForbidsSlices,
    /// It says that there are no claims.
    HidesClaims,
    /// It says that there are no slices, and another takes its place, of which nothing can be watched since then.
    HidesSlices,
    /// It ends watches, and has forgotten what was before (410).
    ForgetsHistory,
    /// Somebody deletes the slices.
    SlicesDeleted,
    /// Somebody takes the taints and some devices out of a slice.
    SliceChanged,
    /// It is restarted without the feature gate of taints, and with it again.
    DropsTaints,
}

/// How late a slow one answers.
const LATE: Duration = Duration::from_millis(800);

/// How long a restart takes: longer than the pause before a watch is opened again.
const DOWN: Duration = Duration::from_secs(2);

/// How long it misbehaves besides what pods take meanwhile.
const LASTS: Duration = Duration::from_millis(500);

// === impl Mischief ===

impl Mischief {
    /// All there are.
    pub(super) const ALL: [Self; 14] = [
        Self::Away,
        Self::Fails,
        Self::Overloaded,
        Self::Slow,
        Self::Drops,
        Self::LosesAnswers,
        Self::Conflicts,
        Self::ForbidsSlices,
        Self::HidesClaims,
        Self::HidesSlices,
        Self::ForgetsHistory,
        Self::SlicesDeleted,
        Self::SliceChanged,
        Self::DropsTaints,
    ];

    /// What the table calls it.
    pub(super) fn kind(self) -> &'static str {
        match self {
            Self::Away => "API server away",
            Self::Fails => "API server fails (500)",
            Self::Overloaded => "API server overloaded (429)",
            Self::Slow => "API server slow",
            Self::Drops => "API server drops connections",
            Self::LosesAnswers => "API server loses answers",
            Self::Conflicts => "API server conflicts (409)",
            Self::ForbidsSlices => "API server forbids slices (403)",
            Self::HidesClaims => "API server hides claims (404)",
            Self::HidesSlices => "API server hides slices",
            Self::ForgetsHistory => "API server forgets history (410)",
            Self::SlicesDeleted => "slices deleted",
            Self::SliceChanged => "slice changed by another",
            Self::DropsTaints => "API server drops taints",
        }
    }

    /// What happens to requests, where it is that.
    fn faults(self) -> Vec<Fault> {
        let everything = |effect| vec![Fault::at("/", effect)];
        let writes = |path: &str, effect: Effect| {
            let to = |method| Fault::at(path, effect.clone()).only(method);
            ["POST", "PUT", "PATCH", "DELETE"].map(to).to_vec()
        };
        let refusal =
            |code, reason| Effect::Refuse(Refusal::new(code, reason, "as the soak wants"));
        match self {
            Self::Fails => everything(refusal(500, "InternalError")),
            Self::Overloaded => everything(Effect::Refuse(Refusal::too_many_requests())),
            Self::Slow => everything(Effect::Delay(LATE)),
            Self::Drops => everything(Effect::Drop),
            Self::LosesAnswers => everything(Effect::LoseAnswer),
            Self::Conflicts => writes("/", refusal(409, "Conflict")),
            Self::ForbidsSlices => writes("resourceslices", Effect::Forbid),
            Self::HidesClaims => vec![Fault::at("resourceclaims", Effect::Hide)],
            Self::HidesSlices => vec![Fault::at("resourceslices", Effect::Hide)],
            Self::Away
            | Self::ForgetsHistory
            | Self::SlicesDeleted
            | Self::SliceChanged
            | Self::DropsTaints => Vec::new(),
        }
    }
}

// === impl Run ===

impl Run {
    /// The API server misbehaves while a pod of each sort comes. The one of the device plugin has nothing to do with
    /// it, and must be admitted as ever.
    pub(super) async fn mischief(
        &mut self,
        what: Mischief,
        gpus: usize,
    ) -> Result<Option<Instant>> {
        if self.rig.cluster.is_none() {
            return Ok(None);
        }
        self.begins_to(what).await?;
        self.admit(gpus).await?;
        let started = self.try_claim(gpus).await?;
        if let (Mischief::HidesClaims, Some(pod)) = (what, started) {
            return Err(Broken::NotDenied { pod }.into());
        }
        sleep(LASTS).await;
        if what == Mischief::DropsTaints {
            self.no_broken_one_is_published().await?;
        }
        self.server()?.heal();
        match what {
            Mischief::Away => self.server()?.come_back(),
            // Who was told that there are none does not hear of what was there before by a watch alone.
            Mischief::HidesSlices => {
                forget_history(&self.server()?.objects());
            }
            Mischief::DropsTaints => restart(self.server()?, &Gate::OFF_IN_1_36).await,
            _ => {}
        }
        Ok(Some(Instant::now()))
    }

    async fn begins_to(&mut self, what: Mischief) -> Result<()> {
        let server = self.server()?;
        what.faults().into_iter().for_each(|fault| server.inject(fault));
        let objects = server.objects();
        match what {
            Mischief::Away => server.go_away().await,
            Mischief::DropsTaints => {
                restart(server, &[&Gate::OFF_IN_1_36[..], &[Gate::DeviceTaints]].concat()).await;
                // What is there keeps its taints.
                delete_slices(&objects)?;
            }
            Mischief::SlicesDeleted => delete_slices(&objects)?,
            Mischief::SliceChanged => self.change_slice()?,
            // A list makes watches necessary again, and both are refused or wrong for a while.
            Mischief::ForgetsHistory | Mischief::HidesSlices | Mischief::Slow => {
                forget_history(&objects);
            }
            _ => {}
        }
        Ok(())
    }

    fn change_slice(&self) -> Result<()> {
        let cluster = self.rig.cluster.as_ref().context("the soak is without claims")?;
        let Some(mut slice) = cluster.slices().pop() else { return Ok(()) };
        let devices = slice.spec.devices.get_or_insert_default();
        devices.truncate(devices.len() / 2);
        for device in devices.iter_mut() {
            device.taints = None;
        }
        slice.metadata.resource_version = None;
        cluster.objects().update(&slice).context("a slice cannot be changed")?;
        Ok(())
    }

    /// Without taints a broken GPU is not to be published at all.
    async fn no_broken_one_is_published(&self) -> Result<()> {
        let begun = Instant::now();
        loop {
            match self.rig.publishes_without_taints()? {
                Ok(()) => return Ok(()),
                Err(left) if begun.elapsed() > RECOVERY_LIMIT => {
                    let (blow, after) = (Mischief::DropsTaints.kind(), begun.elapsed());
                    return Err(Broken::NotBack { blow, after, left }.into());
                }
                Err(_) => sleep(GLANCE).await,
            }
        }
    }

    fn server(&mut self) -> Result<&mut ApiServer> {
        let cluster = self.rig.cluster.as_mut().context("the soak is without claims")?;
        Ok(cluster.server_mut())
    }
}

/// Ends the server's process and starts one with other feature gates, after a while in which it is missed: only a
/// connection that failed makes the agent ask anew what this server keeps.
async fn restart(server: &mut ApiServer, off: &[Gate]) {
    server.go_away().await;
    server.set_gates_off(off.iter().copied());
    sleep(DOWN).await;
    server.come_back();
}

/// Ends watches, and no version that anybody has seen is one to begin a watch from.
fn forget_history(objects: &Objects) {
    // Something is newer than the newest that was seen.
    for node in objects.list::<Node>() {
        objects.put(&node);
    }
    objects.compact();
    objects.cut_watches();
}

fn delete_slices(objects: &Objects) -> Result<()> {
    for slice in objects.list::<ResourceSlice>() {
        let name = slice.metadata.name.unwrap_or_default();
        objects.delete::<ResourceSlice>("", &name).context("a slice cannot be deleted")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_mischief_has_a_name_of_its_own() {
        let kinds: BTreeSet<_> = Mischief::ALL.iter().map(|what| what.kind()).collect();
        assert_eq!(kinds.len(), Mischief::ALL.len());
    }
}
