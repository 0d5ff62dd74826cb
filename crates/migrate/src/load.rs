//! Reads a configuration file in any of the known formats.

use std::{fmt, path::Path};

use windlass_config::{
    Config, ConfigError, Diagnostic, DraOffer, InvalidConfig, Policy, Resources, Unmatched,
    document::{self, YamlNode},
};
use windlass_host::files::{self, Symlinks};

use crate::{NvidiaPluginFlags, Plugin, nvidia};

/// The configuration in a file.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedConfig {
    /// The file's values, with the defaults of its format.
    pub config: Config,
    /// Format of the file.
    pub format: Format,
    /// Warnings about lines without effect, or with an effect that their author may not expect, in order of lines.
    pub warnings: Vec<Diagnostic>,
}

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Windlass's own format.
    Windlass,
    /// The format of NVIDIA's device plugin, version v1.
    Nvidia,
    /// The format of another plugin.
    Imported(Plugin),
    /// Rules of udev.
    UdevRules,
}

/// Maximum size of a file, in bytes: the limit of a `ConfigMap`, which usually holds the file.
pub const MAX_BYTES: u64 = 1 << 20;

/// Reads a file; the flags of NVIDIA's plugin take precedence.
pub fn load(path: &Path, flags: &NvidiaPluginFlags) -> Result<LoadedConfig, ConfigError> {
    let text = files::read_regular_text(path, Symlinks::Followed, MAX_BYTES)
        .map_err(|source| ConfigError::Read(path.to_owned(), source))?;
    parse(path, &text, flags)
}

/// Parses a document. Messages name it by `path`.
pub fn parse(
    path: &Path,
    text: &str,
    flags: &NvidiaPluginFlags,
) -> Result<LoadedConfig, ConfigError> {
    let mistakes = |diagnostics| InvalidConfig::new(path, diagnostics);
    if document::is_empty_document(text) {
        return Err(mistakes(vec![document::empty_document_error(text)]).into());
    }
    if crate::is_rules(path, text) {
        let (mut config, warnings) = crate::read_rules(text).map_err(mistakes)?;
        flags.apply(&mut config);
        return Ok(LoadedConfig { config, format: Format::UdevRules, warnings });
    }
    let root = crate::find_configuration(text, is_of_plugin).map_err(mistakes)?;
    if let Some(error) = discontinued(&root) {
        return Err(mistakes(vec![error]).into());
    }
    if let Some(plugin) = Plugin::of(&root) {
        let (mut config, warnings) = plugin.read(&root).map_err(mistakes)?;
        flags.apply(&mut config);
        return Ok(LoadedConfig { config, format: Format::Imported(plugin), warnings });
    }
    if nvidia::is_file(&root) {
        let (config, warnings) = nvidia::read(&root, flags).map_err(mistakes)?;
        return Ok(LoadedConfig { config, format: Format::Nvidia, warnings });
    }
    let mut config = Config::read(&root).map_err(mistakes)?;
    flags.apply(&mut config);
    let warnings = nothing_offered(&root, &config.policy).into_iter().collect();
    Ok(LoadedConfig { config, format: Format::Windlass, warnings })
}

/// Error for a file of `k8s-rdma-sriov-dev-plugin`, which was discontinued in 2020.
fn discontinued(root: &YamlNode) -> Option<Diagnostic> {
    let is_known_mode =
        |mode: &&YamlNode| mode.text().is_some_and(|it| ["hca", "sriov"].contains(&&*it));
    let mode =
        root.child_ignore_case("mode").filter(is_known_mode).filter(|_| root.keys().count() == 1);
    let key = root.child_ignore_case("pfNetdevices").or(mode)?;
    Some(Diagnostic::new(key.line, DISCONTINUED))
}

const DISCONTINUED: &str = "files of k8s-rdma-sriov-dev-plugin are no longer read: write a rule of resources with \
    kind: nic; see docs/devices/migrating.md#k8s-rdma-sriov-dev-plugin";

/// Warning about a configuration that offers no device, which is valid.
fn nothing_offered(root: &YamlNode, policy: &Policy) -> Option<Diagnostic> {
    let rules = root.child("resources")?;
    let offers = policy.resources != Resources::Rules(Vec::new())
        || policy.unmatched == Unmatched::Default
        || policy.dra.offer != DraOffer::Off
        || policy.sources.iter().any(|it| it.resource.is_some() || it.resource_domain.is_some());
    (!offers).then(|| Diagnostic::new(rules.line, NOTHING_OFFERED))
}

const NOTHING_OFFERED: &str = "no device is offered: list resources, or leave the key out \
    for the default ones";

fn is_of_plugin(root: &YamlNode) -> bool {
    Plugin::of(root).is_some() || nvidia::is_file(root)
}

/// Configuration from flags and variables without a file. Flags or variables of NVIDIA's manifests also imply NVIDIA's
/// defaults, so that an unchanged manifest offers the same resources.
pub fn without_file(flags: &NvidiaPluginFlags) -> Result<LoadedConfig, ConfigError> {
    let is_manifest = flags.mig.is_some()
        || flags.device_lists.is_some()
        || flags.device_ids.is_some()
        || flags.pass_device_specs.is_some();
    parse(Path::new("flags and variables"), if is_manifest { "version: v1\n" } else { "{}" }, flags)
}

// === impl Format ===

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Windlass => f.write_str("Windlass's format"),
            Self::Nvidia => f.write_str("the format of NVIDIA's device plugin"),
            Self::UdevRules => f.write_str("the format of udev's rules"),
            Self::Imported(plugin) => write!(f, "the format of {plugin}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use windlass_config::{DeviceListStrategy, MigStrategy};

    use super::*;

    #[test]
    fn an_unreadable_file_is_named() {
        let error =
            load(Path::new("/nowhere/w.yaml"), &NvidiaPluginFlags::default()).expect_err("absent");
        assert_eq!(error.to_string(), "cannot read configuration /nowhere/w.yaml");
    }

    #[test]
    fn an_unchanged_nvidia_manifest_has_nvidias_defaults() {
        let policy = |flags: &NvidiaPluginFlags| without_file(flags).expect("valid").config.policy;
        assert_eq!(policy(&NvidiaPluginFlags::default()), Config::default().policy);
        let manifest =
            NvidiaPluginFlags { pass_device_specs: Some(false), ..NvidiaPluginFlags::default() };
        let manifest_policy = policy(&manifest);
        assert_eq!(manifest_policy.mig, MigStrategy::None);
        assert_eq!(manifest_policy.delivery.strategies, [DeviceListStrategy::Envvar].into());
    }

    #[test]
    fn keys_identify_the_format() {
        let format = |text: &str| parse(Path::new("w.yaml"), text, &NvidiaPluginFlags::default());
        for (text, expected) in [
            ("{}", Format::Windlass),
            ("mig: none\nimex: {channels: [0]}\n", Format::Windlass),
            ("version: v1\n", Format::Nvidia),
            ("flags: {migStrategy: none}\n", Format::Nvidia),
            ("sharing: {}\n", Format::Nvidia),
            ("imex: {channelIDs: [0]}\n", Format::Nvidia),
            ("resources: {gpus: []}\n", Format::Nvidia),
            ("resourceList: []\n", Format::Imported(Plugin::Sriov)),
            ("ResourceList: []\n", Format::Imported(Plugin::Sriov)),
            ("devices: []\n", Format::Imported(Plugin::Generic)),
            ("device: [{name: a}]\n", Format::Imported(Plugin::Generic)),
            ("- {devicematch: a}\n", Format::Imported(Plugin::Smarter)),
            ("# a\n\nKERNEL==\"a\"\n", Format::UdevRules),
        ] {
            assert_eq!(format(text).expect(text).format, expected, "{text}");
        }
        for text in ["mode: mixed\n", "mode: hca\nmig: none\n", "device: cdi-cri\n"] {
            let error = format(text).expect_err(text).to_string();
            assert!(error.contains("unknown field `"), "{error}");
        }
    }

    #[test]
    fn a_file_of_a_discontinued_plugin_is_refused_with_the_replacement() {
        for text in ["\nmode: hca\n", "{\n\"mode\": \"sriov\",\"pfNetdevices\": [\"p0\"]}"] {
            let error = parse(Path::new("w.yaml"), text, &NvidiaPluginFlags::default());
            let error = error.expect_err(text).to_string();
            let expected =
                "w.yaml:2: files of k8s-rdma-sriov-dev-plugin are no longer read: write a rule";
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
