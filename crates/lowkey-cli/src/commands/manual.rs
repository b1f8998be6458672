//! `man`: the manual pages, one for each command. Packages ship them; nobody types this.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Command};
use clap_mangen::Man;

use crate::exit::{self, CommandFailure};

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Where to write them; made if it is missing
    folder: PathBuf,
}

pub(crate) fn manual(args: &ManArgs, mut command: Command) -> ExitCode {
    command.build();
    let written = fs::create_dir_all(&args.folder).and_then(|()| write(&command, "lowkey", &args.folder));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let line = format!("cannot write to {}: {error}", args.folder.display());
            CommandFailure::new(exit::NO, line).report(false)
        }
    }
}

fn write(command: &Command, name: &str, folder: &Path) -> io::Result<()> {
    let mut page = Vec::new();
    // What was built knows its whole name: `lowkey lease list` is to be found as lowkey-lease-list.
    Man::new(command.clone()).render(&mut page)?;
    fs::write(folder.join(format!("{name}.1")), page)?;
    let visible = |command: &&Command| !command.is_hide_set() && command.get_name() != "help";
    command
        .get_subcommands()
        .filter(visible)
        .try_for_each(|command| write(command, &format!("{name}-{}", command.get_name()), folder))
}
