//! CDI document of a claim: container edits that the devices' own documents do not have.
//!
//! The claim's UID is part of each CDI device name, so that no name is ever reused: some runtimes cache documents.
//! The document can be rebuilt from the state file of claims alone.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

use windlass_cdi::memory_limits::LimitRecords;
use windlass_config::HostPaths;
use windlass_core::cdi::{ContainerEdits, Kind, Spec, SpecDevice, VENDOR};
use windlass_host::files;

use super::record::PreparedClaim;

const CLAIM: Kind = Kind::new("claim");

/// CDI documents of claims, and the records of memory limits that hooks in them read.
#[derive(Clone, Debug)]
pub(crate) struct ClaimDocuments {
    dir: PathBuf,
    limits: LimitRecords,
}

/// Qualified name of the edits for the claim's n-th device.
pub(crate) fn qualified_cdi_name(uid: &str, position: usize) -> String {
    CLAIM.qualify(cdi_device_name(uid, position))
}

fn cdi_device_name(uid: &str, position: usize) -> String {
    format!("{uid}-{position}")
}

// === impl ClaimDocuments ===

impl ClaimDocuments {
    pub(crate) fn new(places: &HostPaths) -> Self {
        let limits = LimitRecords::of_claims(&places.state_dir);
        Self { dir: places.cdi_dir.clone(), limits }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.dir
    }

    /// Record of a claim's memory limits.
    pub(crate) fn limits(&self, uid: &str) -> PathBuf {
        self.limits.path(uid)
    }

    /// Writes a claim's document, unless an equal one exists. Returns true if it wrote. Blocks.
    pub(crate) fn write(&self, record: &PreparedClaim) -> Result<bool, String> {
        let uid = &record.claim.uid;
        // The record comes first: the document names it, and the hook reads it.
        if record.limits.is_some() {
            self.limits.write_or_remove(uid, record.limits.as_ref())?;
        }
        let devices =
            record.devices.iter().enumerate().filter(|(_, device)| !device.edits.is_empty());
        let devices = devices.map(|(position, prepared)| {
            SpecDevice::new(cdi_device_name(uid, position), prepared.edits.clone())
        });
        let document = Spec::new(&CLAIM, devices.collect(), ContainerEdits::default());
        if document.devices.is_empty() {
            return Ok(false);
        }
        let path = self.path(uid);
        let written = files::replace(
            &path,
            windlass_cdi::to_json(&document).as_bytes(),
            files::FileAccess::Everyone,
        );
        written.map_err(|error| format!("cannot write CDI document {}: {error}", path.display()))
    }

    /// Rewrites a claim's document if it is missing or differs. Blocks.
    pub(crate) fn restore(&self, record: &PreparedClaim) -> Result<(), String> {
        if self.write(record)? {
            tracing::warn!(claim = %record.claim, "CDI document written again");
        }
        Ok(())
    }

    /// Removes a claim's document and its record of limits, if they exist. Blocks.
    pub(crate) fn remove(&self, uid: &str) -> Result<(), String> {
        let path = self.path(uid);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(format!("cannot remove CDI document {}: {error}", path.display()))
            }
            _ => self.limits.write_or_remove(uid, None),
        }
    }

    /// UIDs of claims with a document, of this or an earlier agent. Blocks.
    pub(crate) fn claims(&self) -> BTreeSet<String> {
        self.file_names().filter_map(|name| uid_in(&name).map(str::to_owned)).collect()
    }

    /// Removes the documents of unknown claims. Blocks.
    pub(crate) fn remove_orphans(&self, known_uids: &BTreeSet<String>) {
        for uid in self.claims().difference(known_uids) {
            match self.remove(uid) {
                Ok(()) => tracing::info!(uid, "orphaned CDI document removed"),
                Err(error) => tracing::warn!(uid, error, "orphaned CDI document not removed"),
            }
        }
        self.limits.retain(|uid| known_uids.contains(uid));
    }

    /// Removes temporary files of a killed agent. Blocks.
    pub(crate) fn remove_temporary_files(&self) {
        for name in
            self.file_names().filter(|name| files::target_of_draft(name).and_then(uid_in).is_some())
        {
            let path = self.dir.join(name);
            match fs::remove_file(&path) {
                Ok(()) => tracing::info!(path = %path.display(), "draft of a CDI document removed"),
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "draft of a CDI document not removed");
                }
            }
        }
    }

    fn file_names(&self) -> impl Iterator<Item = String> + use<> {
        let files = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        files.filter_map(|file| file.file_name().into_string().ok())
    }

    fn path(&self, uid: &str) -> PathBuf {
        self.dir.join(format!("{VENDOR}-claim-{uid}.json"))
    }
}

fn uid_in(file_name: &str) -> Option<&str> {
    file_name.strip_prefix(VENDOR)?.strip_prefix("-claim-")?.strip_suffix(".json")
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn documents(folder: &TempDir) -> ClaimDocuments {
        let (cdi_dir, state_dir) = (folder.path().to_owned(), folder.path().join("state"));
        ClaimDocuments::new(&HostPaths { cdi_dir, state_dir, ..HostPaths::default() })
    }

    #[test]
    fn temporary_files_of_claims_are_removed_and_other_files_stay() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let names = [
            ".windlass.dev-claim-a.json.draft",
            ".windlass.dev-gpu.json.draft",
            ".other.dev-claim-a.json.draft",
            "windlass.dev-claim-a.json",
        ];
        for name in names {
            fs::write(folder.path().join(name), "{").expect("written");
        }
        let documents = documents(&folder);
        documents.remove_temporary_files();
        let exists = names.map(|name| folder.path().join(name).exists());
        assert_eq!(exists, [false, true, true, true]);
        assert_eq!(documents.claims(), BTreeSet::from(["a".to_owned()]));
    }

    #[test]
    fn documents_of_unknown_claims_are_removed_and_others_stay() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let names = [
            "windlass.dev-claim-a.json",
            "windlass.dev-claim-b.json",
            "windlass.dev-gpu.json",
            "other.dev-claim-b.json",
        ];
        for name in names {
            fs::write(folder.path().join(name), "{}").expect("written");
        }
        let known_uids = BTreeSet::from(["a".to_owned()]);
        documents(&folder).remove_orphans(&known_uids);
        let exists = names.map(|name| folder.path().join(name).exists());
        assert_eq!(exists, [true, false, true, true]);
    }
}
