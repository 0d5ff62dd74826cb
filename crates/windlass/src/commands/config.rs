//! `windlass config`: check, convert, device profiles, schema.

mod profiles;

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};

use anyhow::{Result, anyhow};
use windlass_config::{ConfigError, Diagnostic, to_yaml};
use windlass_host::files;
use windlass_migrate::{LoadedConfig, MAX_BYTES, NvidiaPluginFlags, load, parse};

use crate::{cli::ConfigCommand, exit::UsageError, packed, screen::print_line};

/// Output of `windlass_config::schema`, as a test verifies. The text adds 10 KB to the program; its generator would add
/// 350 KB.
const SCHEMA: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/config.schema"));

pub(crate) fn run(command: ConfigCommand) -> Result<()> {
    match command {
        ConfigCommand::Check { files, strict } => check(&files, strict),
        ConfigCommand::Convert { file } => convert(&file),
        ConfigCommand::Profiles { name, output } => profiles::run(name, output),
        ConfigCommand::Schema => Ok(print_line(packed::unpack_text(SCHEMA))?),
    }
}

fn check(files: &[PathBuf], strict: bool) -> Result<()> {
    let (mut mistakes, mut warnings) = (0, 0);
    for file in files {
        match read(file) {
            Ok(loaded) => {
                warnings += loaded.warnings.len();
                report(file, &loaded)?;
            }
            Err(ConfigError::Invalid(invalid)) => {
                mistakes += invalid.diagnostics.len();
                print_line(invalid)?;
            }
            Err(error) => return Err(UsageError(error.into()).into()),
        }
    }
    match (mistakes, warnings) {
        (1.., _) => Err(UsageError(anyhow!("mistakes: {mistakes}, warnings: {warnings}")).into()),
        (0, 1..) if strict => Err(UsageError(anyhow!("warnings: {warnings}")).into()),
        (0, _) => Ok(()),
    }
}

/// Argument that stands for stdin, as in other tools.
const STDIN: &str = "-";

/// Paths of inherited descriptors, for a shell's `<(...)`. Other paths must be regular files, because opening a named
/// pipe can block. The pipe of a descriptor is open already.
const DESCRIPTORS: [&str; 3] = ["/dev/fd", "/proc/self/fd", "/dev/stdin"];

fn read(file: &Path) -> Result<LoadedConfig, ConfigError> {
    let text = if file.as_os_str() == STDIN {
        files::read_text(io::stdin().lock(), MAX_BYTES)
    } else if DESCRIPTORS.iter().any(|folder| file.starts_with(folder)) {
        File::open(file).and_then(|pipe| files::read_text(pipe, MAX_BYTES))
    } else {
        return load(file, &NvidiaPluginFlags::default());
    };
    let text = text.map_err(|source| ConfigError::Read(display_path(file).to_owned(), source))?;
    parse(display_path(file), &text, &NvidiaPluginFlags::default())
}

fn display_path(file: &Path) -> &Path {
    if file.as_os_str() == STDIN { Path::new("stdin") } else { file }
}

fn report(file: &Path, loaded: &LoadedConfig) -> Result<()> {
    let name = display_path(file).display();
    for Diagnostic { line: number, text } in &loaded.warnings {
        print_line(format!("{name}:{number}: warning: {text}"))?;
    }
    Ok(print_line(format!("{name}: accepted, in {}", loaded.format))?)
}

fn convert(file: &Path) -> Result<()> {
    let loaded = read(file).map_err(|error| UsageError(error.into()))?;
    print_line(format!(
        "# Converted from {}, in {}.",
        display_path(file).display(),
        loaded.format
    ))?;
    for Diagnostic { line: number, text } in &loaded.warnings {
        print_line(format!("# line {number}: {text}"))?;
    }
    Ok(print_line(to_yaml(&loaded.config).trim_end())?)
}
