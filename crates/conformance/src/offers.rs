//! What a program offers at all, found out once: cases about the rest are not applicable.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Instant,
};

use tokio::time::sleep;
use windlass_kubelet_sim::Event;

use crate::{
    case::{Api, Case, Unmet, not_applicable},
    stage::{LOOK, Stage},
    subject::Subject,
};

/// Why there is nothing to hold against the cases of an API.
#[derive(Debug, Default)]
pub(crate) struct Offers {
    lacking: BTreeMap<Api, String>,
}

// === impl Offers ===

impl Offers {
    /// Starts the program, if its command can be that of a driver, until it has shown each API that the cases are
    /// about. One that shows nothing at all is taken for a device plugin, whose cases say what is wrong.
    pub(crate) async fn look(subject: &Arc<Subject>, cases: &[Case]) -> Self {
        let mut missing: BTreeSet<Api> = cases.iter().map(Case::api).collect();
        if !subject.reaches_an_api_server() {
            let why =
                "the command has no {kubeconfig}, without which a driver reaches no API server";
            return Self { lacking: [(Api::Dra, why.to_owned())].into() };
        }
        let wanted = missing.len();
        if let Ok(mut stage) = Stage::open(Arc::clone(subject))
            && stage.set_up().await.is_ok()
            && stage.start().is_ok()
        {
            watch(&mut stage, &mut missing).await;
        }
        if missing.len() == wanted {
            missing.remove(&Api::DevicePlugin);
        }
        let limit = subject.within.start;
        let why = |api: Api| match api {
            Api::DevicePlugin => (api, format!("it registers no resource within {limit:?}")),
            Api::Dra => (api, format!("it has no socket in plugins_registry within {limit:?}")),
        };
        Self { lacking: missing.into_iter().map(why).collect() }
    }

    /// Ends a case about what is not offered.
    pub(crate) fn has(&self, api: Api) -> Result<(), Unmet> {
        self.lacking.get(&api).map_or(Ok(()), not_applicable)
    }
}

/// Takes out what the program shows.
async fn watch(stage: &mut Stage, missing: &mut BTreeSet<Api>) {
    let begun = Instant::now();
    while !missing.is_empty() && begun.elapsed() < stage.subject.within.start {
        let tried = |event: &Event| {
            matches!(event, Event::Registered { .. } | Event::RegistrationRefused { .. })
        };
        if stage.calls().count(tried) > 0 {
            missing.remove(&Api::DevicePlugin);
        }
        if !stage.registry().is_empty() {
            missing.remove(&Api::Dra);
        }
        if stage.alive().is_err() {
            return;
        }
        sleep(LOOK).await;
    }
}
