//! Document and copy: the choice between them, and the guarantee that the copy is never older.

use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;

const FORMAT: Format = Format { name: "record of words", content_key: "words" };

fn copied_file() -> (TempDir, StateFile<String>, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (path, copy) = (folder.path().join("state/words.json"), folder.path().join("run/words"));
    let host = Host::new(folder.path(), folder.path());
    let file = StateFile::new(path, FORMAT, host).with_copy(copy.clone());
    (folder, file, copy)
}

fn write(file: &StateFile<String>, word: &str) {
    file.write(&word.to_owned()).expect("written");
}

fn read(file: &StateFile<String>) -> Option<String> {
    file.read().expect("readable").map(|saved| saved.content)
}

/// Makes every write fail, by a folder in place of the draft.
fn fail_writes(path: &Path) {
    let name = path.file_name().expect("a file name").to_string_lossy();
    fs::create_dir_all(path.with_file_name(format!(".{name}.draft"))).expect("made");
}

#[test]
fn document_or_copy_alone_is_enough() {
    let (_folder, file, copy) = copied_file();
    write(&file, "one");
    fs::remove_file(file.path()).expect("the file existed");
    assert_eq!(read(&file).as_deref(), Some("one"));
    fs::write(file.path(), "{").expect("damaged");
    assert_eq!(read(&file).as_deref(), Some("one"));
    file.set_aside();
    assert!(
        file.path().with_extension("json.unreadable").exists(),
        "the damaged file is kept for inspection"
    );
    write(&file, "two");
    fs::remove_file(&copy).expect("the file existed");
    assert_eq!(read(&file).as_deref(), Some("two"));
    write(&file, "two");
    assert!(copy.exists(), "the copy is written again although the content is unchanged");
    for path in [file.path(), &copy] {
        fs::remove_file(path).expect("the file existed");
    }
    assert_eq!(read(&file), None);
}

#[test]
fn a_readable_or_newer_document_takes_precedence_over_its_copy() {
    let (_folder, file, copy) = copied_file();
    write(&file, "one");
    let other_copy = fs::read(&copy).expect("the file exists");
    write(&file, "two");
    // Killed after the copy was written, and before the document.
    fs::write(&copy, other_copy).expect("written");
    assert_eq!(read(&file).as_deref(), Some("two"));
    fs::write(file.path(), r#"{"version": 9}"#).expect("written");
    assert!(file.read().expect_err("a newer agent wrote it").is_retryable());
}

#[test]
fn a_damaged_copy_or_a_link_counts_as_absent() {
    let (folder, file, copy) = copied_file();
    write(&file, "one");
    fs::remove_file(file.path()).expect("the file existed");
    fs::write(&copy, "{").expect("damaged");
    assert_eq!(read(&file), None);
    let elsewhere = folder.path().join("elsewhere");
    write(&file, "one");
    fs::rename(file.path(), &elsewhere).expect("moved");
    fs::remove_file(&copy).expect("the file existed");
    symlink(&elsewhere, &copy).expect("linked");
    assert_eq!(read(&file), None);
}

#[test]
fn an_unwritable_copy_fails_no_write_and_is_never_older_than_the_document() {
    let (_folder, file, copy) = copied_file();
    write(&file, "one");
    fail_writes(&copy);
    write(&file, "two");
    assert!(!copy.exists(), "an old copy is removed");
    write(&file, "three");
    assert_eq!(read(&file).as_deref(), Some("three"));
}

#[test]
fn a_failed_write_of_the_document_leaves_a_newer_copy() {
    let (_folder, file, _copy) = copied_file();
    write(&file, "one");
    fail_writes(file.path());
    file.write(&"two".to_owned()).expect_err("the write fails");
    assert_eq!(read(&file).as_deref(), Some("one"), "the new content was not reported as written");
    fs::remove_file(file.path()).expect("the file existed");
    assert_eq!(read(&file).as_deref(), Some("two"));
}
