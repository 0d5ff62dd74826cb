//! Environment variables of a request. Device nodes and mounts are in the devices' CDI documents instead.
//!
//! A container with several requests has one environment, in which the last of equal names wins. So each value also
//! gets a unique name, from claim and request.

use std::collections::{BTreeMap, BTreeSet};

use windlass_cdi::container_edits::{self, plain, upper};
use windlass_core::{cdi::ContainerEdits, resource::ResourceName};

use crate::record::PreparedDevice;

/// Prefix of variables that belong to one request of one claim.
const OWN: &str = "WINDLASS_CLAIM";

/// Separator between the parts of such a name.
const BETWEEN: &str = "__";

/// Variables for a request, under the pod's name for the claim.
pub(super) fn of_request(
    claim: &str,
    resource: &ResourceName,
    envs: BTreeMap<String, String>,
) -> ContainerEdits {
    let request = resource.as_str().split('/').next_back().unwrap_or_default();
    let own = [OWN, &upper(claim)].join("_") + BETWEEN + &upper(request);
    let ids = container_edits::variable(resource);
    let mut env = Vec::new();
    for (name, value) in envs {
        if name == ids {
            env.push(format!("{own}={value}"));
        } else if container_edits::depends_on_devices(&name) {
            env.push(format!("{own}{BETWEEN}{}={value}", plain(&name)));
        }
        env.push(format!("{name}={value}"));
    }
    ContainerEdits { env, ..ContainerEdits::default() }
}

/// A warning for a container that gets all requests of a claim: variables with several values.
pub(crate) fn overlapping(devices: &[PreparedDevice]) -> Option<String> {
    let mut values: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for held in devices {
        let has_own = |name: &str| {
            let end = format!("{BETWEEN}{}", plain(name));
            let names = held.edits.env.iter().filter_map(|it| it.split_once('='));
            names.filter(|(it, _)| it.starts_with(OWN)).any(|(it, _)| it.ends_with(&end))
        };
        for (name, value) in held.edits.env.iter().filter_map(|it| it.split_once('=')) {
            if has_own(name) {
                values.entry(name).or_default().insert(value);
            }
        }
    }
    let several = values.into_iter().filter(|(_, values)| values.len() > 1);
    let names = several.map(|(name, _)| name).collect::<Vec<_>>();
    (!names.is_empty()).then(|| {
        let names = names.join(", ");
        format!(
            "several requests have {names}: a container that gets them all has the last, and each as \
             {OWN}_<claim>{BETWEEN}<request>{BETWEEN}<variable>"
        )
    })
}
