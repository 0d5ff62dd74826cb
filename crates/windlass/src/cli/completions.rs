//! Command line of `windlass completions`, and the completions of every command.

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
    /// The shell.
    shell: Shell,
}

// === impl CompletionsArgs ===

impl CompletionsArgs {
    /// Script for the shell.
    pub(crate) fn script(&self) -> String {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "windlass", &mut script);
        let script = String::from_utf8(script).expect("made of the help's text");
        script.trim_end().to_owned()
    }
}
