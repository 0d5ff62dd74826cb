//! Objects that a command reads, from a cluster or from a file.

use std::fs;

use anyhow::{Context as _, Result};
use windlass_control::objects::Objects;

use crate::{cli::ViewArgs, exit::UsageError};

/// Reads the objects. An unreadable file is a command line mistake.
pub(crate) async fn objects(args: &ViewArgs) -> Result<Objects> {
    let Some(path) = &args.from else {
        return Ok(Objects::fetch(args.kubeconfig.clone()).await?);
    };
    let read = || {
        let text =
            fs::read_to_string(path).with_context(|| format!("--from {}", path.display()))?;
        Ok(Objects::parse(&text, path)?)
    };
    read().map_err(|error| UsageError(error).into())
}
