//! Exported functions of a machine's NVML library. A copy for an older driver lacks the functions of newer drivers.
//!
//! One library simulates every driver: `nvml-sim` exports all functions. In a copy for an older driver, the first
//! letter of a missing function's name is changed in the symbol name table, so the dynamic linker does not find it.

use std::{fs::File, io, os::unix::fs::FileExt as _, path::Path};

use crate::profile::Driver;

/// Functions that drivers with memory limits export.
const MEMORY_LIMITS: [&str; 2] = ["nvmlDeviceGetMemoryLimits_v1", "nvmlDeviceSetMemoryLimits_v1"];

/// First letter of an exported name, and of a hidden name.
const EXPORTED_LETTER: u8 = b'n';
const HIDDEN_LETTER: u8 = b'~';

/// Number of bytes to search from the start of the file. They contain the symbol name table.
const SEARCH_BYTES: u64 = 1 << 20;

/// Exports or hides the functions in a copy of the library, depending on the driver.
pub(crate) fn export_functions(library: &Path, driver: Option<&Driver>) -> io::Result<()> {
    let is_exported = driver.is_some_and(Driver::has_memory_limits);
    let letter = if is_exported { EXPORTED_LETTER } else { HIDDEN_LETTER };
    let file = File::options().read(true).write(true).open(library)?;
    let mut start = vec![0; usize::try_from(file.metadata()?.len().min(SEARCH_BYTES)).unwrap_or(0)];
    file.read_exact_at(&mut start, 0)?;
    for name in MEMORY_LIMITS {
        // A library of an earlier build lacks the function, so there is nothing to hide.
        if let Some(offset) = offset_of(name, &start) {
            file.write_all_at(&[letter], offset)?;
        }
    }
    Ok(())
}

/// Offset of a function's exported or hidden name in the file. Names end with NUL.
fn offset_of(name: &str, bytes: &[u8]) -> Option<u64> {
    let tail = &name.as_bytes()[1..];
    let is_name = |window: &[u8]| {
        matches!(window[0], EXPORTED_LETTER | HIDDEN_LETTER)
            && window[1..].strip_prefix(tail).is_some_and(|end| end == [0])
    };
    let offset = bytes.windows(name.len() + 1).position(is_name)?;
    u64::try_from(offset).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_hidden_and_exported_again() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let library = folder.path().join("library");
        let exported = MEMORY_LIMITS.map(|name| format!("\0{name}\0")).concat();
        std::fs::write(&library, format!("nvml{exported}")).expect("written");
        let driver =
            |version: &str| Driver { version: version.to_owned(), cuda: "13.4".to_owned() };
        for (driver, expected) in [
            (Some(driver("570.133.20")), exported.replace("nvml", "~vml")),
            (Some(driver("615.10")), exported.clone()),
            (None, exported.replace("nvml", "~vml")),
        ] {
            export_functions(&library, driver.as_ref()).expect("a writable copy");
            let text = std::fs::read_to_string(&library).expect("UTF-8 text");
            assert_eq!(text, format!("nvml{expected}"));
        }
    }
}
