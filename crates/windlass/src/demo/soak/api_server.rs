//! Faults of the API server: outages, refusals, delays and wrong answers.

use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use k8s_openapi::api::{core::v1::Node, resource::v1::ResourceSlice};
use serde::Serialize;
use tokio::time::{Instant, sleep};
use windlass_cluster_sim::api::{ApiServer, Effect, Fault as RequestFault, Gate, Objects, Refusal};

use super::{inject::RECOVERY_LIMIT, invariant::Violation, rig::POLL_INTERVAL, run::SoakRun};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "camelCase")]
pub(super) enum ApiServerFault {
    /// Does not accept connections.
    Away,
    /// Answers every request with 500.
    Fails,
    /// Answers every request with 429.
    Overloaded,
    /// Answers after a delay.
    Slow,
    /// Closes connections without an answer.
    Drops,
    /// Executes requests and closes the connection without an answer.
    LosesAnswers,
    /// Answers every write with 409.
    Conflicts,
    /// Answers every write of a slice with 403.
    ForbidsSlices,
    /// Answers requests for claims with 404.
    HidesClaims,
    /// Answers requests for slices with 404; then another server takes over, without history.
    HidesSlices,
    /// Ends watches and forgets history (410).
    ForgetsHistory,
    /// Slices are deleted by another client.
    SlicesDeleted,
    /// Taints and some devices are removed from a slice by another client.
    SliceChanged,
    /// Restarts without the feature gate of taints, and again with it.
    DropsTaints,
}

const DELAY: Duration = Duration::from_millis(800);

/// Duration of a restart, longer than the pause before a watch is opened again.
const OUTAGE: Duration = Duration::from_secs(2);

/// Additional duration of the fault, after the pods have started.
const EXTRA_TIME: Duration = Duration::from_millis(500);

// === impl ApiServerFault ===

impl ApiServerFault {
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

    fn faults(self) -> Vec<RequestFault> {
        let all_requests = |effect| vec![RequestFault::at("/", effect)];
        let writes = |path: &str, effect: Effect| {
            let for_method = |method| RequestFault::at(path, effect.clone()).for_method(method);
            ["POST", "PUT", "PATCH", "DELETE"].map(for_method).to_vec()
        };
        let refusal =
            |code, reason| Effect::Refuse(Refusal::new(code, reason, "injected by the soak"));
        match self {
            Self::Fails => all_requests(refusal(500, "InternalError")),
            Self::Overloaded => all_requests(Effect::Refuse(Refusal::too_many_requests())),
            Self::Slow => all_requests(Effect::Delay(DELAY)),
            Self::Drops => all_requests(Effect::CloseConnection),
            Self::LosesAnswers => all_requests(Effect::DropResponse),
            Self::Conflicts => writes("/", refusal(409, "Conflict")),
            Self::ForbidsSlices => writes("resourceslices", Effect::Forbid),
            Self::HidesClaims => vec![RequestFault::at("resourceclaims", Effect::ReturnEmpty)],
            Self::HidesSlices => vec![RequestFault::at("resourceslices", Effect::ReturnEmpty)],
            Self::Away
            | Self::ForgetsHistory
            | Self::SlicesDeleted
            | Self::SliceChanged
            | Self::DropsTaints => Vec::new(),
        }
    }
}

// === impl SoakRun ===

impl SoakRun {
    /// Injects the fault while one pod of each API starts. The device plugin does not depend on the API server, so
    /// its pod has to be admitted.
    pub(super) async fn api_server_fault(
        &mut self,
        fault: ApiServerFault,
        gpus: usize,
    ) -> Result<Option<Instant>> {
        if self.rig.cluster.is_none() {
            return Ok(None);
        }
        self.begin_api_server_fault(fault).await?;
        self.admit(gpus).await?;
        let started_pod = self.try_start_claim_pod(gpus).await?;
        if let (ApiServerFault::HidesClaims, Some(pod)) = (fault, started_pod) {
            return Err(Violation::DeniedClaimStarted { pod }.into());
        }
        sleep(EXTRA_TIME).await;
        if fault == ApiServerFault::DropsTaints {
            self.wait_for_no_broken().await?;
        }
        self.server()?.clear_faults();
        match fault {
            ApiServerFault::Away => self.server()?.go_online(),
            // A client that got 404 does not learn older objects from a watch alone.
            ApiServerFault::HidesSlices => {
                forget_history(&self.server()?.objects());
            }
            ApiServerFault::DropsTaints => restart(self.server()?, &Gate::OFF_IN_1_36).await,
            _ => {}
        }
        Ok(Some(Instant::now()))
    }

    async fn begin_api_server_fault(&mut self, fault: ApiServerFault) -> Result<()> {
        let server = self.server()?;
        fault.faults().into_iter().for_each(|request_fault| server.inject(request_fault));
        let objects = server.objects();
        match fault {
            ApiServerFault::Away => server.go_offline().await,
            ApiServerFault::DropsTaints => {
                restart(server, &[&Gate::OFF_IN_1_36[..], &[Gate::DeviceTaints]].concat()).await;
                // Existing objects keep their taints.
                delete_slices(&objects)?;
            }
            ApiServerFault::SlicesDeleted => delete_slices(&objects)?,
            ApiServerFault::SliceChanged => self.change_slice()?,
            // Lists and watches are necessary again, and both fail for a while.
            ApiServerFault::ForgetsHistory | ApiServerFault::HidesSlices | ApiServerFault::Slow => {
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
        cluster.fixture.objects().update(&slice).context("a slice cannot be changed")?;
        Ok(())
    }

    /// Checks that broken GPUs are not published while taints are unavailable.
    async fn wait_for_no_broken(&self) -> Result<()> {
        let start = Instant::now();
        loop {
            match self.rig.check_without_taints()? {
                Ok(()) => return Ok(()),
                Err(problem) if start.elapsed() > RECOVERY_LIMIT => {
                    let (fault, after) = (ApiServerFault::DropsTaints.kind(), start.elapsed());
                    return Err(Violation::NotRecovered { fault, after, problem }.into());
                }
                Err(_) => sleep(POLL_INTERVAL).await,
            }
        }
    }

    fn server(&mut self) -> Result<&mut ApiServer> {
        let cluster = self.rig.cluster.as_mut().context("the soak is without claims")?;
        Ok(cluster.fixture.server_mut())
    }
}

/// Restarts the server with other feature gates. The outage is long enough to fail a connection, after which the agent
/// learns the gates again.
async fn restart(server: &mut ApiServer, disabled_gates: &[Gate]) {
    server.go_offline().await;
    server.set_disabled_gates(disabled_gates.iter().copied());
    sleep(OUTAGE).await;
    server.go_online();
}

/// Ends watches and invalidates all known resource versions.
fn forget_history(objects: &Objects) {
    // Creates a version above all known ones.
    for node in objects.list::<Node>() {
        objects.put(&node);
    }
    objects.compact();
    objects.end_watches();
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
    fn each_fault_has_a_unique_name() {
        let faults = ApiServerFault::value_variants();
        let kinds: BTreeSet<_> = faults.iter().map(|fault| fault.kind()).collect();
        assert_eq!(kinds.len(), faults.len());
    }
}
