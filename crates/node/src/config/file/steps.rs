//! The file's keys for what is done to a device between two containers.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    resources::unlined,
    sources::{USUAL_TIMEOUT, noted, only_one},
    word::{Pause, Written},
};
use crate::config::{Handover, Remark, Step, StepAction, document::Lined};

/// One step of a hand-over: one of these.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct StepEntry {
    /// A URL that is to answer a GET with success.
    #[serde(skip_serializing_if = "Option::is_none")]
    http: Option<String>,
    /// A program with its arguments that is to end with 0; no shell is involved.
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<Vec<String>>,
    /// A file in the device's folder of sysfs; `text` is written to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    write: Option<PathBuf>,
    /// What is written.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// How long it may take; left out, 5s.
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<Pause>,
}

/// What is written as a hand-over.
pub(super) fn handover(
    prepare: Vec<Lined<StepEntry>>,
    release: Vec<Lined<StepEntry>>,
    wrong: &mut Vec<Remark>,
) -> Handover {
    let mut steps = |steps: Vec<Lined<StepEntry>>| -> Vec<Step> {
        let step = |it: Lined<StepEntry>| noted(it.value.into_step(), it.line, wrong);
        steps.into_iter().filter_map(step).collect()
    };
    Handover { prepare: steps(prepare), release: steps(release) }
}

/// What has to be written for these steps.
pub(super) fn written(steps: &[Step]) -> Vec<Lined<StepEntry>> {
    steps.iter().map(|step| unlined(step.into())).collect()
}

// === impl StepEntry ===

impl StepEntry {
    fn into_step(self) -> Result<Step, String> {
        let Self { http, command, write, text, timeout } = self;
        if write.is_some() != text.is_some() {
            return Err("write and text go together".to_owned());
        }
        let text = text.unwrap_or_default();
        let all = [
            http.map(StepAction::Http),
            command.map(StepAction::Command),
            write.map(|file| StepAction::Write { file, text }),
        ];
        let action = only_one(all).ok_or("write one of http, command, write")?;
        Ok(Step { action, timeout: timeout.map_or(USUAL_TIMEOUT, |Written(time)| time) })
    }
}

impl From<&Step> for StepEntry {
    fn from(step: &Step) -> Self {
        let timeout = Some(step.timeout).filter(|it| *it != USUAL_TIMEOUT).map(Written);
        let mut entry = Self { timeout, ..Self::default() };
        match step.action.clone() {
            StepAction::Http(url) => entry.http = Some(url),
            StepAction::Command(command) => entry.command = Some(command),
            StepAction::Write { file, text } => {
                (entry.write, entry.text) = (Some(file), Some(text));
            }
        }
        entry
    }
}
