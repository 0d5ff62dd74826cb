//! Absolute and host paths of the configuration.

use std::path;

use anyhow::{Result, anyhow};
use windlass_config::Config;

use crate::exit::Misuse;

/// Makes relative paths absolute: kubelet and container runtime use them from other working directories.
pub(super) fn anchor(config: &mut Config) {
    let library = config.places.nvml_library.as_mut();
    let folders = [
        &mut config.places.kubelet_dir,
        &mut config.places.host_root,
        &mut config.places.host_root_on_node,
        &mut config.places.cdi_dir,
        &mut config.places.state_dir,
    ];
    for place in folders.into_iter().chain(library) {
        // Fails only if the current folder was deleted; the given path then serves in errors.
        *place = path::absolute(&*place).unwrap_or_else(|_| place.clone());
    }
}

/// Requires absolute paths where the host resolves them.
pub(super) fn named_by_the_host(config: &Config) -> Result<()> {
    let driver = &config.places.driver;
    for (key, path) in [
        ("mpsDir", Some(&config.places.mps_dir)),
        ("deviceInfoDir", Some(&config.places.device_info_dir)),
        ("driver.root", Some(&driver.root)),
        ("driver.devRoot", driver.dev_root.as_ref()),
    ] {
        if let Some(path) = path.filter(|path| !path.is_absolute()) {
            let problem = anyhow!("{key}: {} is not an absolute path of the host", path.display());
            return Err(Misuse(problem).into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{env, path::Path};

    use windlass_config::Places;

    use super::*;

    #[test]
    fn what_was_typed_below_the_current_folder_is_told_from_the_root() {
        let mut config = Config {
            places: Places {
                kubelet_dir: "k".into(),
                host_root_on_node: "m/host".into(),
                cdi_dir: "/var/run/cdi".into(),
                ..Places::default()
            },
            ..Config::default()
        };
        config.places.nvml_library = Some("./m/libnvidia-ml.so.1".into());
        anchor(&mut config);
        let here = env::current_dir().expect("somewhere");
        assert_eq!(config.places.kubelet_dir, here.join("k"));
        assert_eq!(config.places.host_root_on_node, here.join("m/host"));
        assert_eq!(config.places.cdi_dir, Path::new("/var/run/cdi"));
        assert_eq!(config.places.nvml_library, Some(here.join("m/libnvidia-ml.so.1")));
    }

    #[test]
    fn what_the_host_names_is_a_path_from_its_root() {
        named_by_the_host(&Config::default()).expect("the usual ones are");
        let config = Config {
            places: Places { mps_dir: "mps".into(), ..Places::default() },
            ..Config::default()
        };
        let error = named_by_the_host(&config).expect_err("refused").to_string();
        assert_eq!(error, "mpsDir: mps is not an absolute path of the host");
    }
}
