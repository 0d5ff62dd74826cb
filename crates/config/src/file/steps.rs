//! The file's keys for what is done to a device between two containers.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::device::SourceName;

use super::{
    resources::unlined,
    sources::{USUAL_TIMEOUT, noted, only_one},
    word::{Mebibytes, Pause, Written},
};
use crate::{
    Handover, Link, Memory, Processes, Remark, Reset, Step, StepAction, USUAL_MEMORY,
    document::Lined, source::wrong_steps,
};

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
    /// Under `gpu`: `none` is to compute on it any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    processes: Option<Processes>,
    /// Under `gpu`: its memory is to be `free`, or what is free of it is to be `overwrite`n.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<Memory>,
    /// With `memory: free`: how much may be used all the same; left out, 128Mi.
    #[serde(skip_serializing_if = "Option::is_none")]
    at_most: Option<Written<Mebibytes>>,
    /// Under `gpu`: the `gpu` is reset, which no linked one that is in use may be hurt by.
    #[serde(skip_serializing_if = "Option::is_none")]
    reset: Option<Reset>,
    /// Under `nics`: the interface is to come back, and is set `up`.
    #[serde(skip_serializing_if = "Option::is_none")]
    link: Option<Link>,
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

/// What is written as a hand-over of a source that is built in, at this line.
pub(super) fn builtin(
    (source, line): (SourceName, u64),
    (prepare, release): (Vec<Lined<StepEntry>>, Vec<Lined<StepEntry>>),
    wrong: &mut Vec<Remark>,
) -> Handover {
    let handover = handover(prepare, release, wrong);
    let problems = wrong_steps(source, &handover).into_iter();
    wrong.extend(problems.map(|problem| Remark::new(line, problem)));
    handover
}

/// What has to be written for these steps.
pub(super) fn written(steps: &[Step]) -> Vec<Lined<StepEntry>> {
    steps.iter().map(|step| unlined(step.into())).collect()
}

// === impl StepEntry ===

impl StepEntry {
    fn into_step(self) -> Result<Step, String> {
        let Self { http, command, write, text, processes, memory, at_most, reset, link, timeout } =
            self;
        if write.is_some() != text.is_some() {
            return Err("write and text go together".to_owned());
        }
        if at_most.is_some() && memory != Some(Memory::Free) {
            return Err("atMost belongs to memory: free".to_owned());
        }
        let text = text.unwrap_or_default();
        let most = at_most.map_or(USUAL_MEMORY, |Written(most)| most.bytes());
        let all = [
            http.map(StepAction::Http),
            command.map(StepAction::Command),
            write.map(|file| StepAction::Write { file, text }),
            processes.map(StepAction::Processes),
            memory.map(|memory| match memory {
                Memory::Free => StepAction::Memory { most },
                Memory::Overwrite => StepAction::Overwrite,
            }),
            reset.map(StepAction::Reset),
            link.map(StepAction::Link),
        ];
        let action = only_one(all)
            .ok_or("write one of http, command, write, processes, memory, reset, link")?;
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
            StepAction::Processes(who) => entry.processes = Some(who),
            StepAction::Memory { most } => {
                entry.memory = Some(Memory::Free);
                entry.at_most =
                    Some(most).filter(|most| *most != USUAL_MEMORY).map(Mebibytes::of).map(Written);
            }
            StepAction::Overwrite => entry.memory = Some(Memory::Overwrite),
            StepAction::Reset(what) => entry.reset = Some(what),
            StepAction::Link(how) => entry.link = Some(how),
        }
        entry
    }
}
