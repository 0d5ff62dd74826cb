//! Command line of `windlass completions`, and the generator of completion scripts.

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use super::Cli;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  source <(windlass completions bash)                                    for this shell
  windlass completions bash > /etc/bash_completion.d/windlass            for every bash
  windlass completions fish > ~/.config/fish/completions/windlass.fish")]
pub(crate) struct CompletionsArgs {
    /// Shell to print the script for.
    shell: Shell,
}

// === impl CompletionsArgs ===

impl CompletionsArgs {
    /// Returns the completion script of the shell.
    pub(crate) fn script(&self) -> String {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "windlass", &mut script);
        let script = String::from_utf8(script).expect("clap generates UTF-8 from UTF-8 help");
        script.trim_end().to_owned()
    }
}
