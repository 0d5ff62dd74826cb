//! Files of others, read whole: regular ones only, up to a size.
//!
//! A pipe would hold the reader up for ever, a device might answer without an end, and opening one can do something.

use std::{
    fs::{self, File, FileType, Metadata},
    io::{self, Read as _},
    os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _},
    path::Path,
};

use rustix::fs::OFlags;

/// One mebibyte.
pub const MIB: u64 = 1 << 20;

/// Reads the text of a regular file of at most `most_mib` mebibytes.
///
/// # Errors
///
/// Those of the system, and in plain words: what is there instead of a file, that it is larger, or that it is no text.
pub fn read_text(path: &Path, most_mib: u64) -> io::Result<String> {
    // Before it is opened, and again for what was opened: something else may have taken its place.
    check(&fs::metadata(path)?, most_mib)?;
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let flags = i32::try_from(flags.bits()).expect("flags of open fit an int, as C declares them");
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    check(&file.metadata()?, most_mib)?;
    text_of(file, most_mib)
}

/// Reads a text of at most `most_mib` mebibytes from whatever gives it.
///
/// # Errors
///
/// As [`read_text`].
pub fn text_of(from: impl io::Read, most_mib: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    from.take(most_mib * MIB + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most_mib * MIB {
        return Err(too_large(most_mib));
    }
    String::from_utf8(bytes).map_err(|_| refused("it is no text in UTF-8".to_owned()))
}

fn check(found: &Metadata, most_mib: u64) -> io::Result<()> {
    if !found.is_file() {
        return Err(refused(format!("it is {}, and no file", kind(found.file_type()))));
    }
    if found.len() > most_mib * MIB { Err(too_large(most_mib)) } else { Ok(()) }
}

fn kind(found: FileType) -> &'static str {
    if found.is_dir() {
        "a folder"
    } else if found.is_fifo() {
        "a pipe"
    } else if found.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

fn too_large(most_mib: u64) -> io::Error {
    refused(format!("it is larger than {most_mib} MiB, the most that is read"))
}

fn refused(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType as Kind, Mode, mknodat};

    use super::*;

    #[test]
    fn what_is_no_file_of_a_likely_size_is_refused_at_once() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = |name: &str| dir.path().join(name);
        mknodat(CWD, path("pipe"), Kind::Fifo, Mode::RUSR, 0).expect("made");
        let large = File::create(path("large")).expect("made");
        large.set_len(1 << 30).expect("a hole takes no room");
        fs::write(path("binary"), b"\xff\xfe").expect("written");
        fs::write(path("full"), "x".repeat(1 << 20)).expect("written");
        let _socket = std::os::unix::net::UnixListener::bind(path("socket")).expect("bound");
        for (found, expected) in [
            (dir.path().to_owned(), "it is a folder, and no file"),
            (path("pipe"), "it is a pipe, and no file"),
            (path("socket"), "it is a socket, and no file"),
            ("/dev/zero".into(), "it is a device, and no file"),
            (path("large"), "it is larger than 1 MiB, the most that is read"),
            (path("binary"), "it is no text in UTF-8"),
            (path("none"), "No such file or directory (os error 2)"),
        ] {
            let error = read_text(&found, 1).expect_err(expected);
            assert_eq!(error.to_string(), expected);
        }
        assert_eq!(read_text(&path("full"), 1).expect("just as much").len(), 1 << 20);
    }

    #[test]
    fn what_has_no_size_is_read_up_to_the_same_limit() {
        let error = text_of(io::repeat(b'x'), 1).expect_err("no end");
        assert!(error.to_string().starts_with("it is larger than 1 MiB"), "{error}");
        assert_eq!(text_of(&b"{}"[..], 1).expect("small"), "{}");
    }
}
