//! Who has a device and through which of the kubelet's two ways, for whoever asks from outside: pod resources
//! tell of containers, the agent's own record of claims.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
};

use serde::{Deserialize, Serialize};
use windlass_core::{
    device::{DeviceId, Partition},
    resource::ResourceName,
};

use super::{ByDevice, Holder, ask};
use crate::{
    causes, config::Config, ledger::ClaimRef, offer::token, partitions::standing, state::NodeState,
};

/// The owners of each device.
pub type Owners = BTreeMap<DeviceId, BTreeSet<Owner>>;

/// Who has a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "api", rename_all = "camelCase")]
pub enum Owner {
    /// A container, through the device plugin.
    Plugin(Holder),
    /// A claim, through Dynamic Resource Allocation.
    Dra {
        /// The claim's namespace.
        namespace: String,
        /// The claim.
        claim: String,
        /// The UID of its object.
        uid: String,
    },
}

/// What the agent writes of claims, as far as it says who has what.
#[derive(Deserialize)]
struct Claims {
    claims: BTreeMap<String, Claim>,
}

#[derive(Deserialize)]
struct Claim {
    #[serde(rename = "ref")]
    claim: ClaimRef,
    devices: Vec<Held>,
}

#[derive(Deserialize)]
struct Held {
    device: Option<DeviceId>,
    /// Where an instance was made for the claim, which is then called otherwise.
    #[serde(default)]
    partition: Option<Partition>,
}

/// The agent's record of claims, in its folder.
const FILE: &str = "claims.json";

/// Who has the devices of a node, and why that may not be all.
pub async fn owners(config: &Config, node: &NodeState) -> (Owners, Vec<String>) {
    let (mut owners, mut caveats) = (Owners::new(), Vec::new());
    match ask(&config.kubelet_dir).await {
        Ok(held) => of_containers(held, node, &mut owners),
        Err(error) => caveats.push(causes(&error)),
    }
    match claims(&config.state_dir.join(FILE)) {
        Ok(claims) => of_claims(claims, node, &mut owners),
        Err(error) => caveats.push(format!("cannot read the agent's record of claims: {error}")),
    }
    (owners, caveats)
}

/// A token stands for every device of its pool.
fn of_containers(held: ByDevice, node: &NodeState, owners: &mut Owners) {
    for (id, holders) in held {
        for holder in holders {
            let is_pooled = token(id.as_str()).is_some();
            let pool = holder.resource.parse::<ResourceName>().ok().filter(|_| is_pooled);
            let offer = pool.and_then(|name| node.offers.get(&name));
            let devices = offer.into_iter().flat_map(|offer| &offer.devices);
            let pooled = devices.filter(|(_, device)| device.pooled().is_some());
            for device in pooled.map(|(id, _)| id).chain([&id]) {
                let owner = Owner::Plugin(holder.clone());
                owners.entry(device.clone()).or_default().insert(owner);
            }
        }
    }
}

fn of_claims(claims: Vec<Claim>, node: &NodeState, owners: &mut Owners) {
    let found = |held: Held| match held.partition {
        Some(place) => standing(&node.inventory, &place).map(|instance| instance.id.clone()),
        None => held.device,
    };
    for Claim { claim, devices } in claims {
        for device in devices.into_iter().filter_map(found) {
            let ClaimRef { namespace, name, uid } = claim.clone();
            let owner = Owner::Dra { namespace, claim: name, uid };
            owners.entry(device).or_default().insert(owner);
        }
    }
}

/// An agent that has no claims writes none.
fn claims(path: &Path) -> io::Result<Vec<Claim>> {
    let text = match std::fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text?,
    };
    let Claims { claims } = serde_json::from_slice(&text)?;
    Ok(claims.into_values().collect())
}

// === impl Owner ===

impl std::fmt::Display for Owner {
    /// `default/train-0`, or `claim team/notebook`
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Plugin(Holder { namespace, pod, .. }) => write!(f, "{namespace}/{pod}"),
            Self::Dra { namespace, claim, .. } => write!(f, "claim {namespace}/{claim}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn claims_are_read_from_the_agents_record_though_no_kubelet_answers() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let at = |name: &str| folder.path().join(name);
        let config = Config { kubelet_dir: at("kubelet"), state_dir: at("."), ..Config::default() };
        let text = r#"{"version": 1, "boot": null, "claims": {"u": {
            "ref": {"namespace": "team", "name": "train", "uid": "u"}, "state": "PrepareCompleted",
            "devices": [{"pool": "n1/nvidia", "name": "gpu-a", "device": "GPU-a"}]}}}"#;
        std::fs::write(at(FILE), text).expect("written");
        let (owners, caveats) = owners(&config, &NodeState::default()).await;
        let shown = owners["GPU-a"].iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(shown, ["claim team/train"]);
        assert!(caveats[0].contains("pod-resources"), "{caveats:?}");
        std::fs::write(at(FILE), "{").expect("written");
        let (_, caveats) = super::owners(&config, &NodeState::default()).await;
        assert!(caveats[1].starts_with("cannot read the agent's record of claims"), "{caveats:?}");
    }
}
