//! docs/attributes.md has the tables of attributes that the code declares.

use std::{env, fmt::Write as _, fs};

use windlass_config::family_attributes::{self, Attribute, AttributeType};
use windlass_core::device::SourceName;

use super::{page, root};

const PAGE: &str = "docs/attributes.md";

/// Heading of the first table. The text before it is written by hand.
const FIRST_HEADING: &str = "PCI devices";

/// `WINDLASS_BLESS=1` rewrites the tables.
#[test]
fn the_tables_of_attributes_are_current() {
    let written_page = page(PAGE);
    let first_line = format!("## {FIRST_HEADING}\n");
    let (text, _) = written_page.split_once(&first_line).expect("the heading of the first table");
    let mut current_page = text.to_owned();
    write_table(&mut current_page, FIRST_HEADING, family_attributes::STANDARD.iter());
    for source in SourceName::built_in() {
        current_page.push('\n');
        let heading = format!("Source `{source}`");
        write_table(&mut current_page, &heading, family_attributes::of(&source));
    }
    if env::var_os("WINDLASS_BLESS").is_some() {
        fs::write(root().join(PAGE), &current_page).expect("the page is written");
    }
    assert!(current_page == page(PAGE), "WINDLASS_BLESS=1 rewrites {PAGE}");
}

fn write_table(
    page: &mut String,
    heading: &str,
    attributes: impl Iterator<Item = &'static Attribute>,
) {
    let _ = write!(page, "## {heading}\n\n| name | type | meaning |\n| --- | --- | --- |\n");
    for Attribute { domain, name, value_type, meaning } in attributes {
        let value_type = type_name(*value_type);
        let _ = writeln!(page, "| `{domain}/{name}` | {value_type} | {meaning} |");
    }
}

/// Name of the type in DRA.
fn type_name(value_type: AttributeType) -> &'static str {
    match value_type {
        AttributeType::Text => "string",
        AttributeType::Int => "int",
        AttributeType::Bool => "bool",
        AttributeType::Version => "version",
        AttributeType::VersionOrText => "version or string",
        AttributeType::Amount => "quantity",
    }
}
