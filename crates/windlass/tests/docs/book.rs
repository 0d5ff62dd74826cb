//! The site's table of contents has every page once, under the heading of its kind.

use super::{CONTENTS, page, pages, pages::links};

/// Kinds of pages, in the site's order.
const KINDS: [&str; 4] = ["# Tutorials", "# How-to guides", "# Reference", "# Explanation"];

#[test]
fn every_page_is_once_in_the_contents_of_the_site() {
    let contents = page(CONTENTS);
    let mut listed: Vec<_> = links(&contents).map(|path| format!("docs/{path}")).collect();
    listed.sort();
    let names = pages().into_iter().map(|(name, _)| name);
    let existing_pages: Vec<_> = names.filter(|name| name.starts_with("docs/")).collect();
    assert_eq!(listed, existing_pages, "{CONTENTS} on the left, the folder on the right");
}

#[test]
fn the_contents_of_the_site_are_grouped_by_kind() {
    let contents = page(CONTENTS);
    let headings: Vec<_> = contents.lines().filter(|line| line.starts_with("# ")).collect();
    assert_eq!(headings[0], "# Summary", "mdBook's own heading");
    assert_eq!(headings[1..], KINDS);
}
