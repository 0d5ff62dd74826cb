//! Build information, packed texts, and the simulated driver.
//!
//! Names of vendors and devices are compressed, sorted text of 0.4 MB, which costs a process nothing until it is read.
//! The databases' own tables are a hundred thousand pointers, which the dynamic linker would relocate at each
//! start: three milliseconds, and three mebibytes of unshared memory.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use miniz_oxide::deflate::compress_to_vec;

/// File names of the simulated driver, in its crate and in cargo's output.
const DRIVER: (&str, &str) = ("windlass-nvml-sim", "libwindlass_nvml_sim.so");

/// JSON schema of the configuration; a test compares it with the types and rewrites it.
const SCHEMA: &str = "src/commands/config/schema.json";

/// Higher levels of deflate save two percent, and take seconds of a build without optimisation.
const DEFLATE_LEVEL: u8 = 6;

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    emit_build_info();
    let folder =
        PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets this variable for build scripts"));
    fs::write(folder.join("pci.names"), compress(&sorted(pci())))?;
    fs::write(folder.join("usb.names"), compress(&sorted(usb())))?;
    println!("cargo::rerun-if-changed={SCHEMA}");
    fs::write(folder.join("config.schema"), compress(fs::read_to_string(SCHEMA)?.trim_end()))?;
    if env::var_os("CARGO_FEATURE_LABORATORY").is_some() {
        build_driver(&folder)?;
    }
    Ok(())
}

/// A variable that cargo sets.
fn cargo_variable(name: &str) -> String {
    env::var(name).expect("cargo sets this variable for build scripts")
}

/// Builds the simulated driver, a library that the program embeds. Stable cargo has no artifact dependencies, so
/// cargo runs again, in a target folder of its own: the outer run holds the lock of the usual one. Clippy, tests and
/// other sets of features have a build script each, and share this folder: the driver is compiled once for all.
fn build_driver(folder: &Path) -> io::Result<()> {
    let (package, library) = DRIVER;
    for source in ["../machine", "../nvml-sim", "../../profiles", "../../Cargo.lock"] {
        println!("cargo::rerun-if-changed={source}");
    }
    let (profile, target) = (cargo_variable("PROFILE"), cargo_variable("TARGET"));
    // Cargo's folder for the output of one build script lies in `build`, two levels above.
    let target_dir = folder.ancestors().nth(2).unwrap_or(folder).join("windlass-driver");
    let mut cargo = Command::new(cargo_variable("CARGO"));
    cargo.args(["build", "--quiet", "--locked", "--package", package]);
    cargo.arg("--manifest-path").arg("../nvml-sim/Cargo.toml").arg("--target-dir").arg(&target_dir);
    // With an explicit target, the path of the library is independent of the caller's settings.
    cargo.args(["--target", &target]);
    if profile == "release" {
        cargo.arg("--release");
    }
    // No debug information and no lints: those serve people who work on the driver.
    for (setting, value) in [("DEBUG", "false"), ("STRIP", "true")] {
        for profile in ["DEV", "RELEASE"] {
            cargo.env(format!("CARGO_PROFILE_{profile}_{setting}"), value);
        }
    }
    // The library is built completely or not at all.
    cargo.env("CARGO_INCREMENTAL", "0").env_remove("RUSTC_WORKSPACE_WRAPPER");
    let status = cargo.status()?;
    if !status.success() {
        return Err(io::Error::other(format!("cannot build {package}: cargo ended with {status}")));
    }
    fs::copy(target_dir.join(target).join(profile).join(library), folder.join(library)).map(drop)
}

/// Lines `10de NVIDIA Corporation` per vendor and `10de:2330 GH100 [H100 SXM5 80GB]` per device.
fn pci() -> Vec<String> {
    let lines = pci_ids::Vendors::iter().flat_map(|vendor| {
        let devices = vendor
            .devices()
            .map(|device| format!("{:04x}:{:04x} {}", vendor.id(), device.id(), device.name()));
        devices.chain([format!("{:04x} {}", vendor.id(), vendor.name())])
    });
    lines.collect()
}

fn usb() -> Vec<String> {
    let lines = usb_ids::Vendors::iter().flat_map(|vendor| {
        let devices = vendor.devices();
        devices.map(|device| format!("{:04x}:{:04x} {}", vendor.id(), device.id(), device.name()))
    });
    lines.collect()
}

fn sorted(mut lines: Vec<String>) -> String {
    lines.sort_unstable();
    lines.join("\n")
}

fn compress(text: &str) -> Vec<u8> {
    compress_to_vec(text.as_bytes(), DEFLATE_LEVEL)
}

/// Sets commit, target and features for the compiler. Outside a git work tree the commit is the variable
/// `WINDLASS_COMMIT`, or unknown.
fn emit_build_info() {
    println!("cargo::rerun-if-env-changed=WINDLASS_COMMIT");
    let commit = env::var("WINDLASS_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = commit.or_else(|| git(&["log", "-1", "--format=%h of %cs"]));
    println!("cargo::rustc-env=WINDLASS_BUILT_FROM={}", commit.as_deref().unwrap_or("unknown"));
    println!("cargo::rustc-env=WINDLASS_BUILT_FOR={}", cargo_variable("TARGET"));
    let features = env::vars().filter_map(|(name, _)| {
        let name = name.strip_prefix("CARGO_FEATURE_")?.to_lowercase();
        (name != "default").then_some(name)
    });
    let mut features: Vec<_> = features.collect();
    features.sort_unstable();
    let features = if features.is_empty() { "none".to_owned() } else { features.join(", ") };
    println!("cargo::rustc-env=WINDLASS_BUILT_WITH={features}");
    // A new commit changes the version: run again when HEAD or its branch moves.
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
    for name in ["HEAD"].into_iter().chain(branch.as_deref()) {
        if let Some(path) = git(&["rev-parse", "--path-format=absolute", "--git-path", name]) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
}

/// Output of git, if there is a work tree.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}
