//! APIs that a program offers, found once. Cases about the others are not applicable.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::ExitStatus,
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

/// For each API, the reason why its cases do not apply.
#[derive(Debug, Default)]
pub(crate) struct Offers {
    lacking: BTreeMap<Api, String>,
}

/// Program that never serves anything, so no case is played.
#[derive(Debug)]
pub(crate) struct Stillborn {
    pub(crate) why: String,
    pub(crate) last_words: Vec<String>,
}

// === impl Offers ===

impl Offers {
    /// Starts the program until it has shown each API that the cases cover. A program that lives and shows nothing
    /// counts as a device plugin, and the cases report the fault. A program that ends before it shows anything gets
    /// no case.
    pub(crate) async fn look(subject: &Arc<Subject>, cases: &[Case]) -> Result<Self, Stillborn> {
        let mut missing: BTreeSet<Api> = cases.iter().map(Case::api).collect();
        let mut lacking = BTreeMap::new();
        if !subject.reaches_an_api_server() && missing.remove(&Api::Dra) {
            let why =
                "the command has no {kubeconfig}, without which a driver reaches no API server";
            lacking.insert(Api::Dra, why.to_owned());
        }
        let wanted = missing.len();
        if wanted == 0 {
            return Ok(Self { lacking });
        }
        let stillborn = |why, last_words| Stillborn { why, last_words };
        let mut stage = match Stage::open(Arc::clone(subject)) {
            Ok(stage) => stage,
            Err(unmet) => return Err(stillborn(unmet.to_string(), Vec::new())),
        };
        let started = stage.set_up().await.and_then(|()| stage.start());
        started.map_err(|unmet| stillborn(unmet.to_string(), Vec::new()))?;
        let begun = Instant::now();
        let ended = watch(&mut stage, &mut missing).await;
        let after = begun.elapsed();
        if let Some(status) = ended
            && missing.len() == wanted
        {
            let why = format!(
                "the program ended {after:.1?} after its start, before it served anything: {status}"
            );
            return Err(stillborn(why, stage.all_last_words().await));
        }
        if missing.len() == wanted {
            missing.remove(&Api::DevicePlugin);
        }
        let until = match ended {
            Some(status) => format!("before it ended after {after:.1?}: {status}"),
            None => format!("within {:?}", subject.within.start),
        };
        lacking.extend(missing.into_iter().map(|api| match api {
            Api::DevicePlugin => (api, format!("it registers no resource {until}")),
            Api::Dra => (api, format!("it has no socket in plugins_registry {until}")),
        }));
        Ok(Self { lacking })
    }

    /// Ends a case about an API that the program lacks.
    pub(crate) fn has(&self, api: Api) -> Result<(), Unmet> {
        self.lacking.get(&api).map_or(Ok(()), not_applicable)
    }
}

/// Removes the APIs that the program shows. Ends when none is left, at the program's end, or at the start limit.
async fn watch(stage: &mut Stage, missing: &mut BTreeSet<Api>) -> Option<ExitStatus> {
    let begun = Instant::now();
    while !missing.is_empty() && begun.elapsed() < stage.subject.within.start {
        // Read before the sockets: an API shown before the end counts.
        let ended = stage.process().ended();
        let tried = |event: &Event| {
            matches!(event, Event::Registered { .. } | Event::RegistrationRefused { .. })
        };
        if stage.calls().count(tried) > 0 {
            missing.remove(&Api::DevicePlugin);
        }
        if !stage.registry().is_empty() {
            missing.remove(&Api::Dra);
        }
        if ended.is_some() {
            return ended;
        }
        sleep(LOOK).await;
    }
    None
}
