//! Paths of the configuration: makes relative ones absolute, and requires absolute ones of the host.

use std::path;

use anyhow::{Result, anyhow};
use windlass_config::{Config, HostPaths};

use crate::exit::UsageError;

/// Makes relative paths absolute: kubelet and container runtime use them from other working directories.
pub(super) fn make_absolute(config: &mut Config) {
    let library = config.places.nvml_library.as_mut();
    let folders = [
        &mut config.places.kubelet_dir,
        &mut config.places.host_root,
        &mut config.places.host_root_on_node,
        &mut config.places.cdi_dir,
        &mut config.places.state_dir,
    ];
    for place in folders.into_iter().chain(library) {
        // Fails only if the current folder was deleted. Errors then show the given path.
        *place = path::absolute(&*place).unwrap_or_else(|_| place.clone());
    }
}

/// Moves folders of the node below the root of its recording. Kubelet, runtime and agent of this machine know nothing
/// of the recorded devices, unless a flag names their folders.
pub(super) fn move_into_recording(places: &mut HostPaths) {
    let host = places.host();
    for folder in [&mut places.kubelet_dir, &mut places.cdi_dir, &mut places.state_dir] {
        *folder = host.path(&*folder);
    }
}

/// Requires absolute paths in settings that programs on the host resolve.
pub(super) fn require_host_paths(config: &Config) -> Result<()> {
    let driver = &config.places.driver;
    for (key, path) in [
        ("mpsDir", Some(&config.places.mps_dir)),
        ("deviceInfoDir", Some(&config.places.device_info_dir)),
        ("driver.root", Some(&driver.root)),
        ("driver.devRoot", driver.dev_root.as_ref()),
    ] {
        if let Some(path) = path.filter(|path| !path.is_absolute()) {
            let problem = anyhow!("{key}: {} is not an absolute path of the host", path.display());
            return Err(UsageError(problem).into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{env, path::Path};

    use windlass_config::HostPaths;

    use super::*;

    #[test]
    fn relative_paths_become_absolute() {
        let mut config = Config {
            places: HostPaths {
                kubelet_dir: "k".into(),
                host_root_on_node: "m/host".into(),
                cdi_dir: "/var/run/cdi".into(),
                ..HostPaths::default()
            },
            ..Config::default()
        };
        config.places.nvml_library = Some("./m/libnvidia-ml.so.1".into());
        make_absolute(&mut config);
        let here = env::current_dir().expect("a current folder");
        assert_eq!(config.places.kubelet_dir, here.join("k"));
        assert_eq!(config.places.host_root_on_node, here.join("m/host"));
        assert_eq!(config.places.cdi_dir, Path::new("/var/run/cdi"));
        assert_eq!(config.places.nvml_library, Some(here.join("m/libnvidia-ml.so.1")));
    }

    #[test]
    fn paths_of_the_host_must_be_absolute() {
        require_host_paths(&Config::default()).expect("the defaults are absolute");
        let config = Config {
            places: HostPaths { mps_dir: "mps".into(), ..HostPaths::default() },
            ..Config::default()
        };
        let error =
            require_host_paths(&config).expect_err("a relative path is refused").to_string();
        assert_eq!(error, "mpsDir: mps is not an absolute path of the host");
    }
}
