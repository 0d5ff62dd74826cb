//! Prepared claims of the test driver. A file stores them, and each claim has a CDI spec.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::PathBuf,
    sync::{Mutex, MutexGuard},
};

use k8s_openapi::api::resource::v1::{DeviceRequestAllocationResult, ResourceClaim};
use kube::{Api, Client, ResourceExt as _};
use serde::{Deserialize, Serialize};
use serde_json::json;
use windlass_kubelet_api::dra::v1::{Claim, Device};

use crate::{DRIVER, defect::Defect};

/// Prepared claims, and the folder that stores them.
pub(crate) struct Claims {
    client: Client,
    folder: PathBuf,
    defect: Defect,
    /// UIDs of claims that an earlier process prepared.
    from_earlier_process: BTreeSet<String>,
    prepared: Mutex<PreparedClaims>,
}

type PreparedClaims = BTreeMap<String, Vec<PreparedDevice>>;

/// Device of a claim.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct PreparedDevice {
    request: String,
    pool: String,
    device: String,
    share: Option<String>,
    is_admin: bool,
    cdi: String,
}

// === impl Claims ===

impl Claims {
    /// Reads the prepared claims of earlier processes.
    pub(crate) fn open(client: Client, folder: PathBuf, defect: Defect) -> io::Result<Self> {
        fs::create_dir_all(folder.join("cdi"))?;
        let prepared = match fs::read(folder.join("claims.json")) {
            Ok(text) if defect != Defect::LosesClaimsOnExit => serde_json::from_slice(&text)?,
            _ => PreparedClaims::new(),
        };
        let from_earlier_process = prepared.keys().cloned().collect();
        Ok(Self { client, folder, defect, from_earlier_process, prepared: Mutex::new(prepared) })
    }

    /// Prepares a claim, and returns its devices or the reason of its refusal.
    pub(crate) async fn prepare(&self, claim: &Claim) -> Result<Vec<Device>, String> {
        if self.defect == Defect::LeaksDescriptors {
            let _ = fs::File::open("/dev/null").map(std::mem::forget);
        }
        let object = match self.get_claim(claim).await {
            Err(_) if self.defect == Defect::PreparesMissingClaims => return Ok(Vec::new()),
            Err(_) if self.defect == Defect::ExitsOnMissingClaims => std::process::exit(1),
            result => result?,
        };
        if object.uid().as_ref() != Some(&claim.uid) && self.defect != Defect::IgnoresUids {
            return Err("the claim was replaced".to_owned());
        }
        let Some(results) = results(object) else {
            return match self.defect {
                Defect::PreparesUnallocatedClaims => Ok(Vec::new()),
                _ => Err("the claim is not allocated".to_owned()),
            };
        };
        let is_own = |result: &DeviceRequestAllocationResult| {
            result.driver == DRIVER || self.defect == Defect::PreparesOtherDriversResults
        };
        let own_results = results.into_iter().filter(is_own);
        let entries = own_results.map(|result| self.entry(&claim.uid, result)).collect();
        self.record(&claim.uid, entries)
    }

    async fn get_claim(&self, claim: &Claim) -> Result<ResourceClaim, String> {
        let claims = Api::<ResourceClaim>::namespaced(self.client.clone(), &claim.namespace);
        claims.get(&claim.name).await.map_err(|error| {
            if self.defect == Defect::ExitsWithoutApiServer && !matches!(error, kube::Error::Api(_))
            {
                std::process::exit(1);
            }
            error.to_string()
        })
    }

    fn entry(&self, uid: &str, result: DeviceRequestAllocationResult) -> PreparedDevice {
        let DeviceRequestAllocationResult { request, pool, device, share_id, admin_access, .. } =
            result;
        let base = request.split('/').next().unwrap_or_default().to_owned();
        let suffix = match self.defect {
            Defect::NewNamesEachStart => format!("-{}", std::process::id()),
            _ => String::new(),
        };
        PreparedDevice {
            cdi: format!("{uid}-{device}{suffix}"),
            request: if self.defect == Defect::NamesSubrequests { request } else { base },
            pool: if self.defect == Defect::NamesAnotherPool { "pool".to_owned() } else { pool },
            device,
            share: share_id.filter(|_| self.defect != Defect::ForgetsShares),
            is_admin: admin_access == Some(true) && self.defect != Defect::RefusesAdminAccess,
        }
    }

    /// Records the devices of a claim, unless another claim has one of them.
    fn record(&self, uid: &str, entries: Vec<PreparedDevice>) -> Result<Vec<Device>, String> {
        let mut prepared = self.prepared();
        if prepared.contains_key(uid) && self.defect == Defect::PreparesOnce {
            return Err("the claim is prepared".to_owned());
        }
        let is_exclusive = |entry: &PreparedDevice| !entry.is_admin && entry.device != "shared";
        let other_entries = || {
            let other_claims = prepared.iter().filter(|(other_uid, _)| *other_uid != uid);
            other_claims.flat_map(|(_, entries)| entries)
        };
        let conflict = entries.iter().filter(|entry| is_exclusive(entry)).find(|entry| {
            other_entries().any(|other| is_exclusive(other) && other.device == entry.device)
        });
        if let Some(entry) = conflict.filter(|_| self.defect != Defect::PreparesDevicesTwice) {
            return Err(format!("another claim has {}", entry.device));
        }
        prepared.insert(uid.to_owned(), entries.clone());
        self.write(&prepared);
        if self.defect != Defect::CdiNamesWithoutDocuments {
            self.write_spec(uid, &entries);
        }
        Ok(entries.into_iter().map(Device::from).collect())
    }

    fn write(&self, prepared: &PreparedClaims) {
        let text = serde_json::to_vec(prepared).expect("a map with string keys");
        fs::write(self.folder.join("claims.json"), text).expect("the case's folder is writable");
    }

    fn spec_path(&self, uid: &str) -> PathBuf {
        self.folder.join("cdi").join(format!("{DRIVER}-{uid}.json"))
    }

    fn write_spec(&self, uid: &str, entries: &[PreparedDevice]) {
        let devices: Vec<_> = entries.iter().map(|entry| json!({"name": entry.cdi})).collect();
        let kind = format!("{DRIVER}/claim");
        let document = json!({"cdiVersion": "0.5.0", "kind": kind, "devices": devices});
        fs::write(self.spec_path(uid), document.to_string())
            .expect("the case's folder is writable");
    }

    /// Releases a claim.
    pub(crate) async fn release(&self, claim: &Claim) -> Result<(), String> {
        if self.defect == Defect::NeedsTheObjectToUnprepare {
            self.get_claim(claim).await?;
        }
        let mut prepared = self.prepared();
        let removed = prepared.remove(&claim.uid);
        if removed.is_none() && self.defect == Defect::ReleasesOnce {
            return Err("the claim is not prepared".to_owned());
        }
        self.write(&prepared);
        if self.defect != Defect::LeavesOldDocuments
            || !self.from_earlier_process.contains(&claim.uid)
        {
            let _ = fs::remove_file(self.spec_path(&claim.uid));
        }
        Ok(())
    }

    /// Releases all claims.
    pub(crate) fn release_all(&self) {
        let prepared = std::mem::take(&mut *self.prepared());
        for uid in prepared.keys() {
            let _ = fs::remove_file(self.spec_path(uid));
        }
        self.write(&PreparedClaims::new());
    }

    fn prepared(&self) -> MutexGuard<'_, PreparedClaims> {
        self.prepared.lock().expect("no holder of the lock panics")
    }
}

fn results(claim: ResourceClaim) -> Option<Vec<DeviceRequestAllocationResult>> {
    claim.status?.allocation?.devices?.results
}

// === impl Device ===

impl From<PreparedDevice> for Device {
    fn from(entry: PreparedDevice) -> Self {
        Self {
            request_names: vec![entry.request],
            pool_name: entry.pool,
            device_name: entry.device,
            cdi_device_ids: vec![format!("{DRIVER}/claim={}", entry.cdi)],
            share_id: entry.share,
        }
    }
}
