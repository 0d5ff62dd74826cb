//! Import of the configuration of NVIDIA's device plugin, `version: v1`.
//!
//! Values, defaults and refusals equal the plugin's release 0.20; an unknown key gets a warning. The plugin reads
//! patterns, custom names and subsets of devices, and ignores them. Windlass applies them, with a warning.

mod flags;
mod overrides;
mod pattern;
mod resources;
mod sharing;
mod written;

use serde::Deserialize;
use windlass_config::{
    Config, DeviceIdStrategy, DeviceListStrategy, Diagnostic, MigStrategy, Policy,
    document::{self, Diagnostics, Spanned, UnknownKeys, YamlNode},
};

pub use overrides::{HealthChecks, NvidiaPluginFlags};

use self::{
    flags::FlagsEntry,
    resources::{ResourceNames, ResourcesEntry},
    sharing::SharingEntry,
};

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NvidiaPluginFile {
    version: Option<Spanned<String>>,
    flags: FlagsEntry,
    resources: Option<Spanned<ResourcesEntry>>,
    sharing: SharingEntry,
    imex: ImexEntry,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ImexEntry {
    #[serde(rename = "channelIDs")]
    channel_ids: Option<Spanned<Vec<u32>>>,
    required: Option<bool>,
}

/// True if the document is a configuration of NVIDIA's plugin.
pub(super) fn is_file(root: &YamlNode) -> bool {
    let is_plugin_key = |key: &str| ["version", "flags", "sharing"].contains(&key);
    let has_key = |key, names: [&str; 2]| {
        root.child(key).is_some_and(|child| child.keys().any(|key| names.contains(&key)))
    };
    root.keys().any(is_plugin_key)
        || has_key("resources", ["gpus", "mig"])
        || has_key("imex", ["channelIDs", "channelids"])
}

/// Reads a document. Flags of the command line take precedence.
pub(super) fn read(
    root: &YamlNode,
    flags: &NvidiaPluginFlags,
) -> Result<(Config, Vec<Diagnostic>), Vec<Diagnostic>> {
    let reading = document::read::<NvidiaPluginFile>(root, UnknownKeys::Ignored);
    let mut diagnostics = Diagnostics { errors: reading.errors, warnings: reading.ignored };
    let config = reading.value.unwrap_or_default().into_config(flags, &mut diagnostics);
    diagnostics.into_result(config)
}

// === impl NvidiaPluginFile ===

impl NvidiaPluginFile {
    fn into_config(
        self,
        command_line: &NvidiaPluginFlags,
        diagnostics: &mut Diagnostics,
    ) -> Config {
        if let Some(version) = self.version.filter(|it| !["", "v1"].contains(&it.value.as_str())) {
            let problem = format!("unknown version {:?}: NVIDIA's plugin has v1", version.value);
            diagnostics.errors.push(Diagnostic::new(version.line, problem));
        }
        let mut config = defaults();
        config.policy.labels = self.flags.labels(diagnostics);
        let mut flags = self.flags.into_flags(diagnostics);
        self.imex.apply(&mut flags, diagnostics);
        let mig = command_line.mig.or(flags.mig).unwrap_or(config.policy.mig);
        self.sharing.check(mig, diagnostics);
        let resources = self.resources.map(|it| it.value.checked(diagnostics)).unwrap_or_default();
        let names = ResourceNames::new(resources, mig);
        (config.policy.resources, config.policy.unmatched) =
            self.sharing.rules(&names, diagnostics);
        config.policy.exclude = names.exclude();
        flags.apply(&mut config);
        // A driver root on the command line also moves `/dev`, unless the file has a root for `/dev`.
        let dev_root = command_line.dev_root.clone().or(flags.dev_root);
        NvidiaPluginFlags { dev_root, ..command_line.clone() }.apply(&mut config);
        config
    }
}

/// Windlass's defaults, replaced by the plugin's where they differ.
fn defaults() -> Config {
    let mut policy = Policy { mig: MigStrategy::None, ..Policy::default() };
    policy.delivery.strategies = [DeviceListStrategy::Envvar].into();
    policy.delivery.ids = DeviceIdStrategy::Uuid;
    Config { policy, ..Config::default() }
}

// === impl ImexEntry ===

impl ImexEntry {
    fn apply(self, flags: &mut NvidiaPluginFlags, diagnostics: &mut Diagnostics) {
        if let Some(ids) = &self.channel_ids
            && !matches!(ids.value.as_slice(), [] | [0])
        {
            let problem = "imex.channelIDs: NVIDIA's plugin takes [] or [0]; for other channels \
                           write Windlass's own format (windlass config convert)";
            diagnostics.errors.push(Diagnostic::new(ids.line, problem));
        }
        flags.imex_channels = self.channel_ids.map(|ids| ids.value.into_iter().collect());
        flags.imex_required = self.required;
    }
}

#[cfg(test)]
mod tests;
