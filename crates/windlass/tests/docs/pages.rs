//! All pages: they are in the index, begin with their readers, and have valid links.

use std::{collections::BTreeSet, path::Path};

use super::{page, pages, root};

#[test]
fn every_page_names_its_readers_and_is_in_the_index() {
    let index = page("docs/README.md");
    for (name, page) in pages() {
        let Some(path) = name.strip_prefix("docs/") else { continue };
        let lines: Vec<_> = page.lines().take(4).collect();
        let line_starts_with = |index: usize, prefix: &str| {
            lines.get(index).is_some_and(|line| line.starts_with(prefix))
        };
        assert!(
            line_starts_with(0, "# ") && line_starts_with(2, "For "),
            "{name} begins without its readers"
        );
        assert!(line_starts_with(3, "It answers "), "{name} begins without what it answers");
        let is_listed = path == "README.md" || index.contains(&format!("]({path})"));
        assert!(is_listed, "docs/README.md lacks {path}");
    }
}

/// Pages of the repository's root, without the front pages.
const ROOT_PAGES: [&str; 8] = [
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "GOVERNANCE.md",
    "MAINTAINERS.md",
    "SECURITY.md",
    "SUPPORT.md",
];

/// The targets of a page's links.
pub(super) fn links(page: &str) -> impl Iterator<Item = &str> {
    let inline = page.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    inline.map(|(target, _)| target).filter(|target| !target.starts_with("http"))
}

/// The anchors of a page's headings, as GitHub makes them.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut is_code = false;
    let mut anchors = BTreeSet::new();
    for line in page.lines() {
        is_code ^= line.trim_start().starts_with("```");
        let Some(heading) = line.strip_prefix('#').filter(|_| !is_code) else { continue };
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let is_kept = |letter: &char| letter.is_alphanumeric() || [' ', '-', '_'].contains(letter);
        anchors.insert(heading.chars().filter(is_kept).collect::<String>().replace(' ', "-"));
    }
    anchors
}

/// Maximum size of the front page, in bytes.
const MAX: usize = 8 * 1024;

#[test]
fn the_front_page_is_short() {
    let bytes = page("README.md").len();
    assert!(bytes <= MAX, "{bytes} bytes: move detail to docs/");
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let root_pages = ROOT_PAGES.map(|name| (name.to_owned(), page(name)));
    let mut broken_links = Vec::new();
    for (name, text) in pages().into_iter().chain(root_pages) {
        for target in links(&text) {
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = if path.is_empty() {
                root().join(&name)
            } else {
                root().join(&name).parent().unwrap_or(Path::new("")).join(path)
            };
            let linked_text = std::fs::read_to_string(&file).unwrap_or_default();
            let is_there =
                file.exists() && (anchor.is_empty() || anchors(&linked_text).contains(anchor));
            if !is_there {
                broken_links.push(format!("{name}: {target}"));
            }
        }
    }
    assert!(broken_links.is_empty(), "{broken_links:#?}");
}
