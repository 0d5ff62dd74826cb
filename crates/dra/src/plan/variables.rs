//! Environment variables of a request. Device nodes and mounts are in the devices' CDI documents instead.
//!
//! A container with several requests has one environment, in which the last of equal names wins. So each value also
//! gets a unique name, from claim and request.

use std::collections::{BTreeMap, BTreeSet};

use windlass_cdi::container_edits::{self, replace_punctuation, to_env_name};
use windlass_core::{cdi::ContainerEdits, resource::ResourceName};

use crate::record::PreparedDevice;

/// Prefix of variables that belong to one request of one claim.
const CLAIM_PREFIX: &str = "WINDLASS_CLAIM";

/// Separator between the parts of such a name.
const SEPARATOR: &str = "__";

/// Variables for a request, under the pod's name for the claim.
pub(super) fn request_variables(
    claim: &str,
    resource: &ResourceName,
    envs: BTreeMap<String, String>,
) -> ContainerEdits {
    let request = resource.as_str().split('/').next_back().unwrap_or_default();
    let own_prefix =
        [CLAIM_PREFIX, &to_env_name(claim)].join("_") + SEPARATOR + &to_env_name(request);
    let ids = container_edits::resource_variable(resource);
    let mut env = Vec::new();
    for (name, value) in envs {
        if name == ids {
            env.push(format!("{own_prefix}={value}"));
        } else if container_edits::depends_on_devices(&name) {
            env.push(format!("{own_prefix}{SEPARATOR}{}={value}", replace_punctuation(&name)));
        }
        env.push(format!("{name}={value}"));
    }
    ContainerEdits { env, ..ContainerEdits::default() }
}

/// A warning for a container that gets all requests of a claim: variables with several values.
pub(crate) fn conflict_warning(devices: &[PreparedDevice]) -> Option<String> {
    let mut values: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for device in devices {
        let has_own = |name: &str| {
            let end = format!("{SEPARATOR}{}", replace_punctuation(name));
            let names = device.edits.env.iter().filter_map(|variable| variable.split_once('='));
            names
                .filter(|(name, _)| name.starts_with(CLAIM_PREFIX))
                .any(|(name, _)| name.ends_with(&end))
        };
        for (name, value) in device.edits.env.iter().filter_map(|variable| variable.split_once('='))
        {
            if has_own(name) {
                values.entry(name).or_default().insert(value);
            }
        }
    }
    let with_conflict = values.into_iter().filter(|(_, values)| values.len() > 1);
    let names = with_conflict.map(|(name, _)| name).collect::<Vec<_>>();
    (!names.is_empty()).then(|| {
        let names = names.join(", ");
        format!(
            "several requests have {names}: a container that gets them all has the last, and each as \
             {CLAIM_PREFIX}_<claim>{SEPARATOR}<request>{SEPARATOR}<variable>"
        )
    })
}
