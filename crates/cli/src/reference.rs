//! The reference page of all commands, generated from their definitions.

use clap::Command;

/// Columns of the help texts.
const WIDTH: usize = 100;

/// The page of `command`, with a section per subcommand.
pub(crate) fn markdown(mut command: Command) -> String {
    command.build();
    let mut page = String::from(
        "# Commands\n\nThe help of each command. `flambeau man --markdown` prints this page, and `flambeau man COMMAND` a manual page.\n\
         `flambeau completions SHELL` prints a script that completes commands and flags.\n",
    );
    let commands = command.get_subcommands().filter(|own| own.get_name() != "help" && !own.is_hide_set());
    for own in commands {
        let help = own.clone().term_width(WIDTH).render_long_help().to_string();
        let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
        page += &format!("\n## flambeau {}\n```text\n{}\n```\n", own.get_name(), lines.join("\n").trim_end());
    }
    page
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    #[test]
    fn the_page_of_commands_is_up_to_date() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md");
        let committed = fs::read_to_string(path).expect("docs/cli.md reads");
        for (line, (found, committed)) in markdown(Cli::command()).lines().zip(committed.lines()).enumerate() {
            assert_eq!(found, committed, "docs/cli.md, line {}: write it anew with `flambeau man --markdown`", line + 1);
        }
        assert_eq!(markdown(Cli::command()).lines().count(), committed.lines().count(), "docs/cli.md ends elsewhere");
    }
}
