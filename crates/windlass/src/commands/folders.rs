//! Folders as they were typed, and as everybody else has to know them.

use std::path;

use anyhow::{Result, anyhow};
use windlass_config::Config;

use crate::exit::Misuse;

/// Makes what was given as a relative path absolute: kubelets and container runtimes are told of these folders, and
/// are somewhere else.
pub(super) fn anchor(config: &mut Config) {
    let library = config.places.driver.nvml_library.as_mut();
    let folders = [
        &mut config.places.kubelet_dir,
        &mut config.places.host_root,
        &mut config.places.host_root_on_node,
        &mut config.places.cdi_dir,
        &mut config.places.state_dir,
    ];
    for place in folders.into_iter().chain(library) {
        // Nothing but a current folder that is gone makes this fail; what was typed says it then.
        *place = path::absolute(&*place).unwrap_or_else(|_| place.clone());
    }
}

/// What is named as the host names it is below no folder of ours.
pub(super) fn named_by_the_host(config: &Config) -> Result<()> {
    let driver = &config.places.driver;
    for (key, path) in [
        ("mpsDir", Some(&config.places.mps_dir)),
        ("deviceInfoDir", Some(&config.places.device_info_dir)),
        ("driver.root", Some(&driver.root)),
        ("driver.devRoot", driver.dev_root.as_ref()),
    ] {
        if let Some(path) = path.filter(|path| !path.is_absolute()) {
            let problem = anyhow!("{key}: {} is no absolute path of the host", path.display());
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
        config.places.driver.nvml_library = Some("./m/libnvidia-ml.so.1".into());
        anchor(&mut config);
        let here = env::current_dir().expect("somewhere");
        assert_eq!(config.places.kubelet_dir, here.join("k"));
        assert_eq!(config.places.host_root_on_node, here.join("m/host"));
        assert_eq!(config.places.cdi_dir, Path::new("/var/run/cdi"));
        assert_eq!(config.places.driver.nvml_library, Some(here.join("m/libnvidia-ml.so.1")));
    }

    #[test]
    fn what_the_host_names_is_a_path_from_its_root() {
        named_by_the_host(&Config::default()).expect("the usual ones are");
        let config = Config {
            places: Places { mps_dir: "mps".into(), ..Places::default() },
            ..Config::default()
        };
        let error = named_by_the_host(&config).expect_err("refused").to_string();
        assert_eq!(error, "mpsDir: mps is no absolute path of the host");
    }
}
