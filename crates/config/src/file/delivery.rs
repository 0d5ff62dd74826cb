//! The file's keys for what a container gets: hooks and IMEX channels.

use std::{collections::BTreeSet, path::PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::word::Channel;
use crate::{Hooks, Imex, MissingChannel};

/// Which of the NVIDIA container toolkit's hooks CDI documents ask for.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct HooksEntry {
    /// The toolkit's program, as the host names it; left out, it is looked for where packages put
    /// it.
    #[serde(skip_serializing_if = "Option::is_none")]
    program: Option<PathBuf>,
    /// Hooks that are left out, by the toolkit's names; `all` leaves out every one.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    disabled: BTreeSet<String>,
}

/// Channels for memory that is exported between nodes.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct ImexEntry {
    /// The channels that every container gets.
    channels: BTreeSet<Channel>,
    /// Whether GPUs are kept back while a channel is missing.
    required: bool,
}

// === impl HooksEntry ===

impl HooksEntry {
    pub(super) fn of(hooks: &Hooks) -> Option<Self> {
        let Hooks { program, disabled } = hooks.clone();
        (*hooks != Hooks::default()).then_some(Self { program, disabled })
    }
}

impl From<HooksEntry> for Hooks {
    fn from(HooksEntry { program, disabled }: HooksEntry) -> Self {
        Self { program, disabled }
    }
}

// === impl ImexEntry ===

impl ImexEntry {
    pub(super) fn of(imex: &Imex) -> Option<Self> {
        let channels = imex.channels.iter().copied().map(Channel).collect();
        let required = imex.missing == MissingChannel::Refused;
        (*imex != Imex::default()).then_some(Self { channels, required })
    }
}

impl From<ImexEntry> for Imex {
    fn from(entry: ImexEntry) -> Self {
        let channels = entry.channels.into_iter().map(|Channel(number)| number).collect();
        let missing =
            if entry.required { MissingChannel::Refused } else { MissingChannel::Tolerated };
        Self { channels, missing }
    }
}
