//! Functions of the installed driver. A machine's copy of the library lacks those of newer drivers.
//!
//! One library simulates every driver. The copy of an older one has the names of missing functions changed by one
//! letter in the table of names, so the dynamic linker finds none of them. `nvml-sim` exports the functions.

use std::{fs::File, io, os::unix::fs::FileExt as _, path::Path};

use crate::profile::Driver;

/// Functions that came with memory limits.
const MEMORY_LIMITS: [&str; 2] = ["nvmlDeviceGetMemoryLimits_v1", "nvmlDeviceSetMemoryLimits_v1"];

/// First letter of an exported name, and of a hidden one.
const EXPORTED: u8 = b'n';
const HIDDEN: u8 = b'~';

/// Beginning of the file, which has the table of names.
const SEARCHED: u64 = 1 << 20;

/// Exports or hides the functions in a copy of the library, as the driver has them.
pub(crate) fn suit(library: &Path, driver: Option<&Driver>) -> io::Result<()> {
    let shown = driver.is_some_and(Driver::has_memory_limits);
    let letter = if shown { EXPORTED } else { HIDDEN };
    let file = File::options().read(true).write(true).open(library)?;
    let mut start = vec![0; usize::try_from(file.metadata()?.len().min(SEARCHED)).unwrap_or(0)];
    file.read_exact_at(&mut start, 0)?;
    for name in MEMORY_LIMITS {
        // A library of an earlier build has no such name, and nothing to hide.
        if let Some(place) = place_of(name, &start) {
            file.write_all_at(&[letter], place)?;
        }
    }
    Ok(())
}

/// Offset of a name, exported or hidden. Names end with NUL.
fn place_of(name: &str, bytes: &[u8]) -> Option<u64> {
    let rest = &name.as_bytes()[1..];
    let is_name = |window: &[u8]| {
        matches!(window[0], EXPORTED | HIDDEN)
            && window[1..].strip_prefix(rest).is_some_and(|end| end == [0])
    };
    let place = bytes.windows(name.len() + 1).position(is_name)?;
    u64::try_from(place).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_hidden_and_shown_again() {
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
            suit(&library, driver.as_ref()).expect("changed");
            let text = std::fs::read_to_string(&library).expect("text");
            assert_eq!(text, format!("nvml{expected}"));
        }
    }
}
