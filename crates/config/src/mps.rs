//! How MPS daemons are run: time limits, shared memory, and whose programs share one server.

use std::{path::PathBuf, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How MPS daemons are run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MpsSettings {
    /// What the host calls the folder that the daemons see as `/dev/shm`. Containers get it as theirs,
    /// since a program and its MPS server talk through files in it.
    pub shm_dir: PathBuf,
    /// Whose programs one server takes.
    pub users: MpsUsers,
    /// How long a daemon that was started may take until it answers.
    pub start_deadline: Duration,
    /// How long a daemon may take for an answer, and the driver for a change of the compute mode.
    pub answer_deadline: Duration,
    /// How often a daemon that answered is asked again.
    pub question_interval: Duration,
    /// The first wait before a daemon is started again; it doubles.
    pub retry_first: Duration,
    /// The longest wait before a daemon is started again.
    pub retry_most: Duration,
    /// How long a daemon may take to end by itself before it is killed.
    pub stop_grace: Duration,
}

/// Whose programs one MPS server takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum MpsUsers {
    /// Those of one user at a time; programs of another user wait until the first have ended.
    #[default]
    OneAtATime,
    /// Those of all users at once (`-M`, which older drivers do not know); the server runs as root.
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
            retry_first: Duration::from_secs(1),
            retry_most: Duration::from_secs(300),
            stop_grace: Duration::from_secs(10),
        }
    }
}
