//! MPS daemons: time limits, shared memory, and the users of one server.

use std::{path::PathBuf, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Settings of MPS daemons.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MpsSettings {
    /// Path on the host of the folder that the daemons see as `/dev/shm`. Containers get it at this path, too: a
    /// program and its MPS server communicate through files in it.
    pub shm_dir: PathBuf,
    /// The users of one server.
    pub users: MpsUsers,
    /// Time from the start of a daemon to its first answer.
    #[serde(skip)]
    pub start_deadline: Duration,
    /// Deadline of a daemon's answer, and of a change of the compute mode by the driver.
    #[serde(skip)]
    pub answer_deadline: Duration,
    /// Interval of checks of a running daemon.
    #[serde(skip)]
    pub question_interval: Duration,
    /// The first wait before a daemon is started again; it doubles.
    #[serde(skip)]
    pub retry_min: Duration,
    /// The longest wait before a daemon is started again.
    #[serde(skip)]
    pub retry_max: Duration,
    /// Time for a daemon to end by itself before it is killed.
    #[serde(skip)]
    pub stop_grace: Duration,
}

/// Users of one MPS server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum MpsUsers {
    /// One user at a time; programs of another user wait until the first have ended.
    #[default]
    OneAtATime,
    /// All users at once (`-M`, which older drivers do not know); the server runs as root.
    Together,
}

// === impl MpsSettings ===

impl Default for MpsSettings {
    fn default() -> Self {
        Self {
            shm_dir: "/dev/shm".into(),
            users: MpsUsers::default(),
            start_deadline: Duration::from_secs(20),
            answer_deadline: Duration::from_secs(5),
            question_interval: Duration::from_secs(10),
            retry_min: Duration::from_secs(1),
            retry_max: Duration::from_secs(300),
            stop_grace: Duration::from_secs(10),
        }
    }
}
