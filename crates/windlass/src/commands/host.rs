//! `windlass host record`: snapshot of a host as a folder.

mod about;

use std::{
    fs,
    io::{self, Write as _},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use serde_json::Value;
use windlass_config::Config;
use windlass_core::inventory::Inventory;
use windlass_node::agent;
use windlass_snapshot::{Anonymiser, ExtraFiles, Snapshot, SnapshotError, SnapshotLimits};

use self::about::RecordingManifest;
use super::{clock, host_config, require_sources, source_lines};
use crate::{
    cli::{HostCommand, RecordHostArgs},
    exit::UsageError,
    screen::{Paint, print_line},
};

/// Treatment of serial numbers and addresses in a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Identifiers {
    Kept,
    Anonymised,
}

/// Interval of progress messages.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) async fn run(command: HostCommand) -> Result<()> {
    match command {
        HostCommand::Record(args) => record(args).await,
    }
}

async fn record(args: RecordHostArgs) -> Result<()> {
    let config = host_config(args.host)?;
    new_folder(&args.dir)?;
    let inventory = agent::scan_host(&config, clock()).await.inventory;
    let identifiers = if args.with_serials { Identifiers::Kept } else { Identifiers::Anonymised };
    let (recording, _) = write_recording(&args.dir, &config, &inventory, identifiers)?;
    report(&args.dir, &recording, &inventory)?;
    require_sources(&inventory)
}

/// Creates the folder. A folder with files is a command line mistake.
pub(super) fn new_folder(dir: &Path) -> Result<()> {
    Snapshot::create_folder(dir).map_err(|error| match error {
        SnapshotError::NotEmpty(_) => UsageError(error.into()).into(),
        SnapshotError::Write(..) => anyhow::Error::new(error),
    })
}

/// Records the host into the folder. Returns the recording, and an anonymiser with all identifiers of the host.
pub(super) fn write_recording(
    dir: &Path,
    config: &Config,
    inventory: &Inventory,
    identifiers: Identifiers,
) -> Result<(Snapshot, Anonymiser)> {
    let host = config.places.host();
    let extra = ExtraFiles::for_policy(&config.policy).with_mounts_of(inventory);
    let snapshot = Snapshot::capture(&host, &extra, SnapshotLimits::default(), &mut progress());
    let mut document = serde_json::to_value(inventory)?;
    let mut anonymiser = Anonymiser::for_host(&host);
    let (recording, applied_anonymiser) = match identifiers {
        Identifiers::Kept => (snapshot, None),
        Identifiers::Anonymised => {
            let recording = anonymiser.anonymise(snapshot);
            anonymiser.anonymise_document(&mut document);
            (recording, Some(&anonymiser))
        }
    };
    let manifest = RecordingManifest::new(&host, &recording, applied_anonymiser);
    write(dir, &recording, &manifest, &document)?;
    Ok((recording, anonymiser))
}

fn write(
    dir: &Path,
    recording: &Snapshot,
    manifest: &RecordingManifest<'_>,
    inventory: &Value,
) -> Result<()> {
    recording.write(dir, &manifest.summary()).context("cannot write the recording")?;
    for (name, text) in [
        ("README.txt", manifest.readme()),
        ("manifest.json", serde_json::to_string_pretty(manifest)? + "\n"),
        ("inventory.json", serde_json::to_string_pretty(inventory)? + "\n"),
    ] {
        let path = dir.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn report(dir: &Path, recording: &Snapshot, inventory: &Inventory) -> Result<()> {
    let dir = dir.display();
    let paint = Paint::for_stdout();
    print_line(format!("recorded {} entries in {dir}", recording.len()))?;
    source_lines(inventory, paint)
        .into_iter()
        .map(|text| format!("  {text}"))
        .try_for_each(print_line)?;
    if !recording.omissions.is_empty() {
        print_line(format!(
            "left out {}: manifest.json has the reasons",
            recording.omissions.len()
        ))?;
    }
    print_line("")?;
    print_line("Use it, on any machine:")?;
    print_line(format!("  windlass devices --host-root {dir}"))?;
    print_line("Read its contents, then pack it:")?;
    print_line(format!("  {dir}/README.txt"))?;
    Ok(print_line(format!("  tar czf snapshot.tgz -C {dir} ."))?)
}

/// Prints the progress to stderr.
fn progress() -> impl FnMut(usize) {
    let mut last_report = Instant::now();
    move |entries| {
        if last_report.elapsed() >= PROGRESS_INTERVAL {
            last_report = Instant::now();
            // A closed stderr must not stop the recording.
            let _ = writeln!(io::stderr(), "windlass: {entries} entries so far");
        }
    }
}
