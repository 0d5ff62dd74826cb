//! Tests of the page's files.

use windlass_page::Asset;

#[test]
fn exactly_the_files_of_the_folder_are_served() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/assets");
    let files = std::fs::read_dir(folder).expect("the folder of assets");
    let mut files: Vec<_> = files
        .map(|file| file.expect("readable").file_name().into_string().expect("plain names"))
        .collect();
    files.sort();
    let mut served: Vec<_> = Asset::ALL.iter().map(|asset| asset.name).collect();
    served.sort_unstable();
    assert_eq!(files, served);
}

#[test]
fn every_file_has_a_different_tag() {
    let tags: std::collections::BTreeSet<_> = Asset::ALL.iter().map(Asset::etag).collect();
    assert_eq!(tags.len(), Asset::ALL.len());
    let index = Asset::find("").expect("the page itself");
    assert_eq!((index.name, index.media_type), ("index.html", "text/html; charset=utf-8"));
    assert!(Asset::find("../lib.rs").is_none());
}
