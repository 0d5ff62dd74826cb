//! docs/commands.md has every command, and every flag of the agent with its variable.

use std::collections::{BTreeMap, BTreeSet};

use super::page;
use crate::program::{run, text};

/// Flags with their variables, without flags of NVIDIA's plugin, whose variables lack the prefix.
fn flags(help: &str) -> BTreeMap<String, String> {
    let sections = help.split("\n      --").skip(1);
    let flags = sections.filter_map(|section| {
        let name = section.split([' ', '\n']).next()?;
        let (_, rest) = section.split_once("[env: ")?;
        let (variable, _) = rest.split_once('=')?;
        let is_own =
            variable.starts_with("WINDLASS_") || ["NODE_NAME", "NAMESPACE"].contains(&variable);
        is_own.then(|| (format!("--{name}"), variable.to_owned()))
    });
    flags.collect()
}

#[test]
fn the_documentation_lists_exactly_the_flags_of_the_agent_with_their_variables() {
    let page = page("docs/commands.md");
    let rows = page.lines().filter(|line| line.starts_with("| `--"));
    let documented = rows.map(|row| {
        let mut code_spans = row.split('`').skip(1).step_by(2);
        let flag = code_spans.next().and_then(|code| code.split(' ').next()).unwrap_or_default();
        (flag.to_owned(), code_spans.next().unwrap_or_default().to_owned())
    });
    let help = text(&run(&["node", "--help"]).stdout);
    assert_eq!(documented.collect::<BTreeMap<_, _>>(), flags(&help));
}

#[test]
fn the_documentation_lists_exactly_the_commands() {
    let page = page("docs/commands.md");
    let rows = page.lines().filter(|line| line.starts_with("| `windlass "));
    let cells = rows.filter_map(|row| row.split(" | ").next());
    let commands = cells.flat_map(|cell| cell.split("`windlass ").skip(1));
    let documented =
        commands.filter_map(|command| command.split([' ', '`']).next()).map(str::to_owned);
    let help = text(&run(&["--help"]).stdout);
    let (_, commands) = help.split_once("Commands:\n").expect("commands");
    let (commands, _) = commands.split_once("\n\n").expect("an end");
    let lines = commands.lines().filter_map(|line| line.strip_prefix("  "));
    let names =
        lines.filter(|line| !line.starts_with(' ')).filter_map(|line| line.split(' ').next());
    let commands_in_help: BTreeSet<_> =
        names.filter(|name| *name != "help").map(str::to_owned).collect();
    assert_eq!(documented.collect::<BTreeSet<_>>(), commands_in_help);
}
