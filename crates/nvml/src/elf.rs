//! Check that a library's file is complete, by the length in its ELF header.
//!
//! The dynamic linker maps a truncated file, and SIGBUS kills a program that reads the missing part. If the
//! installation of a driver runs out of disk space, that must be an error instead of a crash loop of the agent.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom},
    path::Path,
};

use crate::error::LoadError;

/// `e_ident` of a 64-bit little-endian file, from `elf.h`.
const IDENT: [u8; 6] = [0x7f, b'E', b'L', b'F', 2, 1];

/// Sizes of `Elf64_Ehdr` and `Elf64_Phdr`, in bytes.
const HEADER: usize = 64;
const SEGMENT: usize = 56;

/// `p_type` of a segment that is mapped.
const PT_LOAD: u64 = 1;

/// Fails for a file that ends before its last segment. An unreadable file, or one of another format, passes, because
/// the dynamic linker reports it.
pub(crate) fn check_length(path: &Path) -> Result<(), LoadError> {
    let Ok((length, required)) = lengths(path) else { return Ok(()) };
    if length >= required {
        return Ok(());
    }
    Err(LoadError::Truncated { path: path.to_owned(), length, expected: required })
}

/// Actual length of a file, and the end of its last segment.
fn lengths(path: &Path) -> io::Result<(u64, u64)> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut header = [0; HEADER];
    file.read_exact(&mut header)?;
    if !header.starts_with(&IDENT) {
        return Ok((length, 0));
    }
    let [e_phoff, e_phnum] = [number(&header[32..40]), number(&header[56..58])];
    let size = e_phnum * SEGMENT as u64;
    if length < e_phoff.saturating_add(size) {
        return Ok((length, e_phoff.saturating_add(size)));
    }
    file.seek(SeekFrom::Start(e_phoff))?;
    let mut segments = Vec::new();
    file.take(size).read_to_end(&mut segments)?;
    let loaded_segments =
        segments.chunks(SEGMENT).filter(|segment| number(&segment[..4]) == PT_LOAD);
    // p_offset, p_filesz.
    let ends = loaded_segments
        .map(|segment| number(&segment[8..16]).saturating_add(number(&segment[32..40])));
    Ok((length, ends.max().unwrap_or(0)))
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_truncated_library_is_refused_before_it_is_mapped() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("libnvidia-ml.so.1");
        // The test program is an ELF file too.
        let program = std::env::current_exe().expect("it runs");
        fs::copy(program, &path).expect("copied");
        check_length(&path).expect("the file is complete");
        let length = fs::metadata(&path).expect("there").len();
        let (_, required) = lengths(&path).expect("it can be read");
        assert!((1..=length).contains(&required), "{required} of {length}");
        for cut in [required - 1, length / 2, 4096, HEADER as u64] {
            File::options().write(true).open(&path).expect("there").set_len(cut).expect("cut");
            let error = crate::Nvml::load(&path).expect_err("the file is truncated");
            assert!(error.to_string().contains("is cut off"), "{cut}: {error}");
        }
        for text in ["", "no library"] {
            fs::write(&path, text).expect("written");
            check_length(&path).expect("the linker reports the format");
        }
    }
}
