//! `windlass cluster record`: writes the objects that placement reads to a file.

use std::fs;

use anyhow::{Context as _, Result};

use super::view;
use crate::{cli::RecordClusterArgs, screen::print_line};

pub(super) async fn run(args: RecordClusterArgs) -> Result<()> {
    let objects = view::objects(&args.view).await?;
    let text = serde_json::to_string(&objects.to_recording())? + "\n";
    fs::write(&args.file, text).with_context(|| format!("cannot write {}", args.file.display()))?;
    let (nodes, pods) = objects.to_index().counts();
    print_line(format!("{nodes} nodes and {pods} pods in {}", args.file.display()))?;
    Ok(())
}
