//! Errors of commands that a build for nodes lacks.

use anyhow::anyhow;

use crate::exit::UsageError;

/// Error of a command that only a build with the cluster half has.
#[cfg(not(feature = "cluster"))]
pub(crate) fn no_cluster_half() -> anyhow::Error {
    let problem = anyhow!(
        "this build for nodes lacks the cluster half: its commands need the feature `cluster`, which cargo enables by \
         default"
    );
    UsageError(problem).into()
}

/// Error of a command that only a build with pipelines has.
#[cfg(not(feature = "pipeline"))]
pub(crate) fn no_pipelines() -> anyhow::Error {
    let problem = anyhow!(
        "this build for nodes lacks pipelines: `pipeline` and `stage` need the feature `pipeline`, which cargo enables by \
         default"
    );
    UsageError(problem).into()
}

/// Error of a command that only a build with the laboratory has.
#[cfg(not(feature = "laboratory"))]
pub(crate) fn no_laboratory() -> anyhow::Error {
    let problem = anyhow!(
        "this build for nodes lacks the laboratory: demo, kubelet, machine, conformance, completions, man and \
         explain --machine need the feature `laboratory`, which cargo enables by default"
    );
    UsageError(problem).into()
}
