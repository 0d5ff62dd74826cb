//! Detection of the APIs that a program offers. Cases about other APIs are not applicable.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::ExitStatus,
    sync::Arc,
    time::Instant,
};

use tokio::time::sleep;
use windlass_kubelet_sim::Event;

use crate::{
    case::{Api, Case, CheckError, not_applicable},
    subject::Subject,
    testbed::{POLL_INTERVAL, Testbed},
};

/// APIs of a program. Each API in the map is missing, for the reason given.
#[derive(Debug, Default)]
pub(crate) struct OfferedApis {
    missing_reasons: BTreeMap<Api, String>,
}

/// Failure of a program that never serves anything. No case runs.
#[derive(Debug)]
pub(crate) struct StartFailure {
    pub(crate) reason: String,
    pub(crate) last_output: Vec<String>,
}

// === impl OfferedApis ===

impl OfferedApis {
    /// Starts the program and waits until each API that the cases cover has appeared, or the start limit has passed. A
    /// running program without an API counts as a device plugin, so its cases report the fault. A program that exits
    /// before an API appears is an error.
    pub(crate) async fn detect(
        subject: &Arc<Subject>,
        cases: &[Case],
    ) -> Result<Self, StartFailure> {
        let mut missing: BTreeSet<Api> = cases.iter().map(Case::api).collect();
        let mut missing_reasons = BTreeMap::new();
        if !subject.reaches_an_api_server() && missing.remove(&Api::Dra) {
            let reason =
                "the command has no {kubeconfig}, which a driver needs to reach an API server";
            missing_reasons.insert(Api::Dra, reason.to_owned());
        }
        let covered = missing.len();
        if covered == 0 {
            return Ok(Self { missing_reasons });
        }
        let start_failure = |reason, last_output| StartFailure { reason, last_output };
        let mut testbed = match Testbed::open(Arc::clone(subject)) {
            Ok(testbed) => testbed,
            Err(error) => return Err(start_failure(error.to_string(), Vec::new())),
        };
        let result = testbed.run_setup_hook().await.and_then(|()| testbed.start());
        result.map_err(|error| start_failure(error.to_string(), Vec::new()))?;
        let started_at = Instant::now();
        let exit_status = watch_apis(&mut testbed, &mut missing).await;
        let elapsed = started_at.elapsed();
        if let Some(status) = exit_status
            && missing.len() == covered
        {
            let reason = format!(
                "the program ended {elapsed:.1?} after its start, before it served anything: \
                 {status}"
            );
            return Err(start_failure(reason, testbed.last_output_after_exit().await));
        }
        if missing.len() == covered {
            missing.remove(&Api::DevicePlugin);
        }
        let period = match exit_status {
            Some(status) => format!("before it ended after {elapsed:.1?}: {status}"),
            None => format!("within {:?}", subject.limits.start),
        };
        missing_reasons.extend(missing.into_iter().map(|api| match api {
            Api::DevicePlugin => (api, format!("it registers no resource {period}")),
            Api::Dra => (api, format!("it has no socket in plugins_registry {period}")),
        }));
        Ok(Self { missing_reasons })
    }

    /// Fails as not applicable if the program lacks the API.
    pub(crate) fn require(&self, api: Api) -> Result<(), CheckError> {
        self.missing_reasons.get(&api).map_or(Ok(()), not_applicable)
    }
}

/// Removes each API from `missing` when it appears. Returns when all have appeared, at the program's exit (with its
/// status), or at the start limit.
async fn watch_apis(testbed: &mut Testbed, missing: &mut BTreeSet<Api>) -> Option<ExitStatus> {
    let started_at = Instant::now();
    while !missing.is_empty() && started_at.elapsed() < testbed.subject.limits.start {
        // Read first: an API that appeared before the exit counts.
        let exit_status = testbed.process().try_wait();
        let is_registration = |event: &Event| {
            matches!(event, Event::Registered { .. } | Event::RegistrationRefused { .. })
        };
        if testbed.events().count(is_registration) > 0 {
            missing.remove(&Api::DevicePlugin);
        }
        if !testbed.registration_sockets().is_empty() {
            missing.remove(&Api::Dra);
        }
        if exit_status.is_some() {
            return exit_status;
        }
        sleep(POLL_INTERVAL).await;
    }
    None
}
