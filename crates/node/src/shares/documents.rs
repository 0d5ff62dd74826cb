//! CDI documents of shares. They also persist the shares: each names its pod, and the next agent reads them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

use windlass_cdi::{container_edits::resource_variable, memory_limits::HookLimit};
use windlass_core::{
    cdi::{ContainerEdits, Spec, SpecDevice, VENDOR},
    device::DeviceId,
    resource::ResourceName,
};
use windlass_deviceplugin::shares::SHARE_KIND;
use windlass_host::files::{self, FileAccess};

use super::hold::Hold;

/// Folder of the documents.
#[derive(Clone, Debug)]
pub(super) struct ShareDocuments(PathBuf);

/// CDI document of one container with a share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ShareDocument {
    pub(super) hold: Hold,
    pub(super) spec: Spec,
    /// Limit of the container that the hook sets; `None` for a document of an earlier agent, whose limit record stays
    /// on disk.
    pub(super) limit: Option<HookLimit>,
}

/// Variable with the share as JSON. The agent reads it again: annotations need a newer CDI version.
const SHARE_VARIABLE: &str = "WINDLASS_SHARE";

/// Edits of a share's container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Edits<'a> {
    /// All edits for the GPUs, from the CDI document of GPUs, and the container's memory limit.
    Gpu(&'a Spec, Option<&'a HookLimit>),
    /// Variables alone: the container has the GPU by another resource.
    Variables,
}

// === impl ShareDocument ===

impl ShareDocument {
    /// Document called `name` for a container with `devices` of the share; `None` if one is missing in the CDI document
    /// of GPUs.
    pub(super) fn new(
        name: &str,
        resource: &ResourceName,
        hold: Hold,
        devices: &[DeviceId],
        edits: Edits<'_>,
    ) -> Option<Self> {
        let (mut device_edits, mut common) = (ContainerEdits::default(), ContainerEdits::default());
        let mut limit = None;
        if let Edits::Gpu(gpus, hook_limit) = edits {
            common = gpus.container_edits.clone();
            device_edits.hooks.extend(hook_limit.map(HookLimit::hook));
            limit = hook_limit.cloned();
            for id in devices {
                let gpu = gpus.devices.iter().find(|device| device.name == id.as_str())?;
                device_edits.merge(gpu.container_edits.clone());
            }
        }
        let record = serde_json::to_string(&hold).expect("strings and numbers are JSON");
        device_edits.env.push(format!("{SHARE_VARIABLE}={record}"));
        let ids: Vec<_> = devices.iter().map(DeviceId::as_str).collect();
        device_edits.env.push(format!("{}={}", resource_variable(resource), ids.join(",")));
        let spec = Spec::new(&SHARE_KIND, vec![SpecDevice::new(name, device_edits)], common);
        Some(Self { hold, spec, limit })
    }

    /// Name and share in a document that an agent wrote.
    fn from_spec(spec: Spec) -> Option<(String, Self)> {
        let device = spec.devices.first()?;
        let prefix = format!("{SHARE_VARIABLE}=");
        let record = device
            .container_edits
            .env
            .iter()
            .find_map(|variable| variable.strip_prefix(&prefix))?;
        let hold = serde_json::from_str(record).ok()?;
        Some((device.name.clone(), Self { hold, spec, limit: None }))
    }
}

// === impl ShareDocuments ===

impl ShareDocuments {
    pub(super) fn new(dir: &Path) -> Self {
        Self(dir.to_owned())
    }

    /// Removes temporary files of a killed agent. Blocks.
    pub(super) fn remove_temporary_files(&self) {
        for file in fs::read_dir(&self.0).into_iter().flatten().flatten() {
            let name = file.file_name().into_string().unwrap_or_default();
            if files::target_of_draft(&name).and_then(name_in).is_some() {
                // Container runtimes ignore such a file, and the next agent tries again.
                let _ = fs::remove_file(file.path());
            }
        }
    }

    /// Documents by name, and the names of unreadable ones. Blocks.
    pub(super) fn read(&self) -> (BTreeMap<String, ShareDocument>, BTreeSet<String>) {
        let (mut documents, mut unreadable) = (BTreeMap::new(), BTreeSet::new());
        for file in fs::read_dir(&self.0).into_iter().flatten().flatten() {
            let name = file.file_name().into_string().unwrap_or_default();
            let Some(name) = name_in(&name) else { continue };
            match windlass_cdi::read_document(&file.path()).and_then(ShareDocument::from_spec) {
                Some((document_name, document)) if document_name == name => {
                    documents.insert(document_name, document);
                }
                _ => drop(unreadable.insert(name.to_owned())),
            }
        }
        (documents, unreadable)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(format!("{VENDOR}-share-{name}.json"))
    }

    /// Writes the document, or removes the file if there is none. Blocks.
    pub(super) fn write_or_remove(
        &self,
        name: &str,
        document: Option<&ShareDocument>,
    ) -> Result<(), String> {
        let path = self.path(name);
        let result = match document {
            // Only root may read it, because it names a pod.
            Some(document) => {
                let text = windlass_cdi::to_json(&document.spec);
                files::replace(&path, text.as_bytes(), FileAccess::Owner).map(drop)
            }
            None => match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            },
        };
        result.map_err(|error| format!("cannot write CDI document {}: {error}", path.display()))
    }
}

fn name_in(file_name: &str) -> Option<&str> {
    file_name.strip_prefix(VENDOR)?.strip_prefix("-share-")?.strip_suffix(".json")
}
