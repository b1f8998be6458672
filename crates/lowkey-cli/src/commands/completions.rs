//! `completions`: what a shell needs to know in order to complete command lines.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use clap_complete::Shell;

use super::printed;

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell to write them for
    shell: Shell,
}

pub(crate) fn completions(args: &CompletionsArgs, mut command: clap::Command) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "lowkey", &mut script);
    match printed(std::io::stdout().lock().write_all(&script)) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => failure.report(false),
    }
}
