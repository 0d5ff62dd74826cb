//! Resources of the device plugin that count shares of GPUs by amounts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::resource::ResourceName;

use crate::scalar::Text;

/// Resources that count amounts of NVIDIA's whole GPUs. A pod that asks for some has a share of one GPU, which is
/// chosen when its first container starts. Nothing enforces the amounts yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ShareResources {
    /// Resource that counts memory in GiB; left out, none.
    #[serde(with = "Text::<ResourceName>")]
    pub memory: Option<ResourceName>,
    /// Resource that counts compute in percent of a GPU; left out, none.
    #[serde(with = "Text::<ResourceName>")]
    pub compute: Option<ResourceName>,
}

// === impl ShareResources ===

impl ShareResources {
    /// The resources.
    pub fn names(&self) -> impl Iterator<Item = &ResourceName> {
        self.memory.iter().chain(&self.compute)
    }

    /// True if any resource counts shares.
    pub fn is_on(&self) -> bool {
        self.names().next().is_some()
    }

    /// Names with two meanings. `others` are those of all other resources.
    pub(crate) fn mistakes(&self, others: &[ResourceName]) -> Vec<String> {
        let is_taken = |name: &&ResourceName| others.contains(name);
        let text = |name| {
            format!("{name} is the name of another resource already: use another one for shares")
        };
        let mut found: Vec<_> = self.names().filter(is_taken).map(text).collect();
        if self.memory.is_some() && self.memory == self.compute {
            found.push("memory and compute are two amounts: use two names".to_owned());
        }
        found
    }
}
